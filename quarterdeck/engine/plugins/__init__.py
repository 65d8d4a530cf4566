"""Plugins: code that runs between the steps of a turn. Import what a plugin needs, and the shipped plugins, from here.

`base.py` defines the thirteen hooks, each shipped plugin is a file of its own, `shipped.py` lists them and the default set,
`installed.py` loads plugins of other packages. Names are imported on first use, so a plugin that isn't mounted costs
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

_MODULES: dict[str, tuple[str, ...]] = {
    "base": (
        *("Abort", "Answer", "Answers", "BlockTool", "Context", "Continue", "Emit", "HOOKS", "Hold", "Intervene"),
        *("InvalidPluginOption", "Plugin", "ReplaceToolArgs", "ReplaceToolResult", "Skip", "SwitchModel"),
    ),
    "approval": ("HumanApproval",),
    "checkpoints": ("AutoCheckpoint",),
    "content": ("ContentPolicy",),
    "guard": ("SecurityGuard",),
    "loops": ("LoopDetection",),
    "memory": ("MemoryFlush",),
    "offload": ("LargeResultOffload",),
    "planning": ("Planning",),
    "shipped": ("default_plugins",),
    "installed": ("BrokenExtension", "NoSuchExtension", "all_installed_tools", "installed_plugin", "installed_tools"),
}
_EXPORTS = {name: module for module, names in _MODULES.items() for name in names}

# Type checkers want a literal list here. It would be a third copy of the names; the imports below tell them the same.
__all__ = [*_EXPORTS]  # noqa: PLE0604 # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from quarterdeck.engine.plugins.approval import HumanApproval as HumanApproval
    from quarterdeck.engine.plugins.base import HOOKS as HOOKS
    from quarterdeck.engine.plugins.base import Abort as Abort
    from quarterdeck.engine.plugins.base import Answer as Answer
    from quarterdeck.engine.plugins.base import Answers as Answers
    from quarterdeck.engine.plugins.base import BlockTool as BlockTool
    from quarterdeck.engine.plugins.base import Context as Context
    from quarterdeck.engine.plugins.base import Continue as Continue
    from quarterdeck.engine.plugins.base import Emit as Emit
    from quarterdeck.engine.plugins.base import Hold as Hold
    from quarterdeck.engine.plugins.base import Intervene as Intervene
    from quarterdeck.engine.plugins.base import InvalidPluginOption as InvalidPluginOption
    from quarterdeck.engine.plugins.base import Plugin as Plugin
    from quarterdeck.engine.plugins.base import ReplaceToolArgs as ReplaceToolArgs
    from quarterdeck.engine.plugins.base import ReplaceToolResult as ReplaceToolResult
    from quarterdeck.engine.plugins.base import Skip as Skip
    from quarterdeck.engine.plugins.base import SwitchModel as SwitchModel
    from quarterdeck.engine.plugins.checkpoints import AutoCheckpoint as AutoCheckpoint
    from quarterdeck.engine.plugins.content import ContentPolicy as ContentPolicy
    from quarterdeck.engine.plugins.guard import SecurityGuard as SecurityGuard
    from quarterdeck.engine.plugins.installed import BrokenExtension as BrokenExtension
    from quarterdeck.engine.plugins.installed import NoSuchExtension as NoSuchExtension
    from quarterdeck.engine.plugins.installed import all_installed_tools as all_installed_tools
    from quarterdeck.engine.plugins.installed import installed_plugin as installed_plugin
    from quarterdeck.engine.plugins.installed import installed_tools as installed_tools
    from quarterdeck.engine.plugins.loops import LoopDetection as LoopDetection
    from quarterdeck.engine.plugins.memory import MemoryFlush as MemoryFlush
    from quarterdeck.engine.plugins.offload import LargeResultOffload as LargeResultOffload
    from quarterdeck.engine.plugins.planning import Planning as Planning
    from quarterdeck.engine.plugins.shipped import default_plugins as default_plugins
else:

    def __getattr__(name: str) -> object:
        if name not in _EXPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
