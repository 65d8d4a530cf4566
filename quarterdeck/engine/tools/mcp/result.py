"""What an MCP server answers, as an outcome."""

from __future__ import annotations

from typing import Any

import msgspec

from quarterdeck.engine.tools.base import Outcome, ToolContext
from quarterdeck.engine.tools.files import IMAGE_LIMIT
from quarterdeck.engine.tools.output import Limits, shortened
from quarterdeck.events import Image

_LIMITS = Limits(head=30_000, tail=30_000)
_IMAGES = 20
#: What all providers can see.
_SEEN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def outcome_of(result: Any, context: ToolContext) -> Outcome:
    """A result of the SDK: pieces of text, images, resources; the whole of what is long lies in the store."""
    texts: list[str] = []
    images: list[Image] = []
    for piece in result.content:
        text, image = _piece(piece)
        if image is not None and len(images) < _IMAGES and len(image.data) * 3 // 4 <= IMAGE_LIMIT:
            images.append(image)
        else:
            texts.append(text)
    if not result.content and result.structured_content is not None:
        texts.append(msgspec.json.encode(result.structured_content).decode())
    shown, path = shortened("\n".join(texts), context, _LIMITS)
    return Outcome(shown, ok=not result.is_error, images=tuple(images), path=path)


def _piece(piece: Any) -> tuple[str, Image | None]:
    """A text, and an image if it is one; the text stands for an image that is too large."""
    match piece.type:
        case "text":
            return piece.text, None
        case "image":
            if piece.mime_type not in _SEEN:
                return f"[an image of type {piece.mime_type}, which cannot be shown]", None
            note = f"[an image of {len(piece.data)} characters, too large or one too many]"
            return note, Image(media_type=piece.mime_type, data=piece.data)
        case "resource" if getattr(piece.resource, "text", None) is not None:
            return piece.resource.text, None
        case "resource" | "resource_link":
            told = getattr(piece, "resource", piece)
            return f"[resource {told.uri}]", None
        case kind:
            return f"[{kind} cannot be shown]", None
