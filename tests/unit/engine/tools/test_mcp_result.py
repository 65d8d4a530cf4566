"""Test how results of MCP servers, in the SDK's own types, become outcomes."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from quarterdeck.engine.tools.base import Outcome
from quarterdeck.engine.tools.files import IMAGE_LIMIT
from quarterdeck.engine.tools.mcp.connection import outcome_of
from quarterdeck.events import Image
from tests.support.tool_context import TestHands

TEXT = types.TextContent(text="said")
SMALL = types.ImageContent(data="AAAA", mime_type="image/png")


def outcome(tmp_path: Path, *content: Any, **more: Any) -> Outcome:
    return outcome_of(types.CallToolResult(content=list(content), **more), TestHands(tmp_path))


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        (TEXT, "said"),
        (types.AudioContent(data="AA==", mime_type="audio/wav"), "[audio, which can't be shown]"),
        (types.ResourceLink(name="a", uri="file:///a.txt"), "[resource file:///a.txt]"),
        (
            types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///a.txt", text="inside")),
            "inside",
        ),
        (
            types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///a.bin", blob="AA==")),
            "[resource file:///a.bin]",
        ),
        (
            types.ImageContent(data="AAAA", mime_type="image/svg+xml"),
            "[image of type image/svg+xml, which can't be shown]",
        ),
    ],
)
def test_pieces(tmp_path: Path, piece: Any, said: str) -> None:
    assert outcome(tmp_path, piece) == Outcome(said)


def test_several(tmp_path: Path) -> None:
    image = Image(media_type="image/png", data="AAAA")
    assert outcome(tmp_path, TEXT, SMALL, TEXT) == Outcome("said\nsaid", images=(image,))
    assert outcome(tmp_path) == Outcome("")
    assert outcome(tmp_path, TEXT, is_error=True) == Outcome("said", ok=False)


def test_what_is_only_structured(tmp_path: Path) -> None:
    assert outcome(tmp_path, structured_content={"a": [1]}) == Outcome('{"a":[1]}')
    assert outcome(tmp_path, TEXT, structured_content={"a": [1]}) == Outcome("said")


def test_images_that_are_too_large_or_too_many(tmp_path: Path) -> None:
    data = base64.b64encode(b"\0" * (IMAGE_LIMIT + 3)).decode()
    large = outcome(tmp_path, types.ImageContent(data=data, mime_type="image/png"))
    assert large.images == ()
    assert "too large" in large.text
    many = outcome(tmp_path, *[SMALL] * 25)
    assert len(many.images) == 20
    assert many.text.count("over the limit") == 5
