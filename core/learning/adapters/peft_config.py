"""PEFT's `adapter_config.json`: read with limits, and written.

An option that Delian does not have is refused by its name, unless it has the value that leaves it
out: an adapter never computes something else here than in PEFT. Regular expressions of a file are
not run, since one may take forever: which layers have adapters is seen in the names of the tensors.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

from ...common.errors import DelianError
from ...common.files import read_at_most
from .adapter_settings import AdapterSettings, Kind, checked

NAME = "adapter_config.json"
#: PEFT writes some KB; names of all layers of a large model some 100 KB.
BYTES_MAX = 1 << 20
#: Names in a list of the file.
NAMES_MAX = 1 << 14
NAME_CHARS_MAX = 1024

#: What says where an adapter is from or how it began, and changes nothing that it computes.
_FREE = (
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_ia3_weights",
    "layers_pattern",
    "layers_to_transform",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
)
_COMMON = ("peft_type", "target_modules", "modules_to_save", "task_type")
_LORA = (
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "use_dora",
    "bias",
    "init_lora_weights",
    "rank_pattern",
    "alpha_pattern",
)
_READ = {"LORA": (*_COMMON, *_LORA), "IA3": (*_COMMON, "feedforward_modules")}
#: First values that leave the base model's weights as they are.
_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
_SHOWN = 60


def read_config(folder: Path) -> AdapterSettings:
    """The settings of an adapter's folder.

    `targets` is empty where more than ends of names decides which layers have adapters.

    Raises DelianError where the file cannot be read, is no such file, or has an option that would
    change what the adapter computes.
    """
    path = folder / NAME
    try:
        if path.exists() and not path.is_file():
            raise DelianError(f"{path} is not a file", "give the folder of an adapter")
        content = read_at_most(path, BYTES_MAX)
    except OSError as error:
        raise DelianError(
            f"{path} cannot be read: {error.strerror or error}",
            "give a folder that save_adapter or PEFT's save_pretrained wrote",
        ) from None
    return _Config(str(path), content).settings()


class _Config:
    """Reads one file; `where` begins each message."""

    def __init__(self, where: str, content: bytes) -> None:
        self.where = where
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            self.fail(f"is no JSON: {str(error)[:_SHOWN]}", "the file is damaged: get it again")
        if type(found) is not dict:
            self.fail("is no object of options", "get the file again")
        self.found: dict[str, Any] = found

    def fail(self, what: str, hint: str) -> NoReturn:
        raise DelianError(f"{self.where}: {what}", hint)

    def settings(self) -> AdapterSettings:
        kind = self.found.get("peft_type")
        if kind not in ("LORA", "IA3"):
            self.fail(
                f"peft_type {_shown(kind)} is not read", "LORA, with or without DoRA, and IA3 are"
            )
        self._check_options(_READ[kind])
        self._flag("fan_in_fan_out")  # the layers say themselves how weights lie
        targets = self._names("target_modules")
        saved = self._names("modules_to_save")
        if isinstance(saved, str):
            self._wrong("modules_to_save", "a list of names")
        task = self.found.get("task_type")
        if task is not None and (type(task) is not str or len(task) > NAME_CHARS_MAX):
            self._wrong("task_type", "a text")
        by_rule = any(self.found.get(name) for name in ("exclude_modules", "layers_to_transform"))
        wanted = () if isinstance(targets, str) or by_rule else targets
        if kind == "IA3":
            inner = self._names("feedforward_modules")
            forward = () if isinstance(inner, str) else inner
            made = AdapterSettings(
                "ia3", wanted, modules_to_save=saved, feedforward=forward, task_type=task
            )
        else:
            made = self._lora(wanted, saved, task)
        try:
            return checked(made)
        except DelianError as error:
            self.fail(error.message, error.hint)

    def _lora(
        self, targets: tuple[str, ...], saved: tuple[str, ...], task: str | None
    ) -> AdapterSettings:
        if self.found.get("bias", "none") != "none":
            self._refuse("bias")
        if (start := self.found.get("init_lora_weights", True)) not in _STARTS:
            self.fail(
                f"init_lora_weights {_shown(start)} changes the base model's weights",
                "convert it with PEFT: save_pretrained(path_initial_model_for_weight_conversion)",
            )
        kind: Kind = "dora" if self._flag("use_dora") else "lora"
        return AdapterSettings(
            kind,
            targets,
            int(self._number("r", 8, whole=True)),
            self._number("lora_alpha", 8),
            self._number("lora_dropout", 0),
            self._flag("use_rslora"),
            saved,
            rank_pattern=tuple((k, int(v)) for k, v in self._pattern("rank_pattern", whole=True)),
            alpha_pattern=self._pattern("alpha_pattern"),
            task_type=task,
        )

    def _check_options(self, known: tuple[str, ...]) -> None:
        for name, value in self.found.items():
            if name not in known and name not in _FREE and value:
                self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        self.fail(
            f"the option {_shown(name)} = {_shown(self.found[name])} is not read: it changes what"
            " the adapter computes",
            "train the adapter without this option, or merge it with PEFT's merge_and_unload",
        )

    def _wrong(self, name: str, wanted: str) -> NoReturn:
        self.fail(f"{name} is {_shown(self.found.get(name))}, and not {wanted}", "get it again")

    def _flag(self, name: str) -> bool:
        value = self.found.get(name)
        if value is not None and type(value) is not bool:
            self._wrong(name, "true or false")
        return bool(value)

    def _number(self, name: str, default: float, whole: bool = False) -> float:
        value = self.found.get(name, default)
        if type(value) not in ((int,) if whole else (int, float)) or abs(value) > 1e9:
            self._wrong(name, "a whole number" if whole else "a number")
        return float(value)

    def _pattern(self, name: str, whole: bool = False) -> tuple[tuple[str, float], ...]:
        value = self.found.get(name) or {}
        if type(value) is not dict or len(value) > NAMES_MAX:
            self._wrong(name, "an object of numbers by names")
        for key, number in value.items():
            if not re.fullmatch(r"[\w.]{1,1024}", key):
                self.fail(
                    f"{name} has the regular expression {_shown(key)}",
                    "write names of modules, or their ends, into it",
                )
            if type(number) not in ((int,) if whole else (int, float)) or abs(number) > 1e9:
                self._wrong(name, "an object of numbers by names")
        return tuple((key, float(number)) for key, number in value.items())

    def _names(self, name: str) -> str | tuple[str, ...]:
        value = self.found.get(name)
        if value is None:
            return ()
        if type(value) is str and len(value) <= NAME_CHARS_MAX:
            return value
        if type(value) is not list or len(value) > NAMES_MAX:
            self._wrong(name, "a list of names")
        if not all(type(v) is str and 0 < len(v) <= NAME_CHARS_MAX for v in value):
            self._wrong(name, "a list of names")
        return tuple(value)


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def config_text(
    settings: AdapterSettings, targets: list[str], feedforward: list[str], stored: bool
) -> str:
    """The file's text.

    Args:
        settings: of the model.
        targets: names of the layers, or their ends.
        feedforward: those whose input is scaled.
        stored: whether PyTorch has the weights as [inputs, outputs] (transformers' Conv1D).
    """
    found: dict[str, Any] = {
        "base_model_name_or_path": None,
        "fan_in_fan_out": stored,
        "inference_mode": True,
        "modules_to_save": list(settings.modules_to_save) or None,
        "peft_type": "IA3" if settings.kind == "ia3" else "LORA",
        "target_modules": targets,
        "task_type": settings.task_type,
    }
    if settings.kind == "ia3":
        found["feedforward_modules"] = feedforward
    else:
        found |= {
            "alpha_pattern": dict(settings.alpha_pattern),
            "bias": "none",
            "init_lora_weights": True,
            "lora_alpha": _whole(settings.alpha),
            "lora_dropout": settings.dropout,
            "r": settings.rank,
            "rank_pattern": dict(settings.rank_pattern),
            "use_dora": settings.kind == "dora",
            "use_rslora": settings.use_rslora,
        }
    return json.dumps(found, indent=2, sort_keys=True) + "\n"


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value
