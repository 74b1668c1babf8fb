"""Data: a device's own sources, rows on disk and their pipelines, and data sets as federations.

Of a federation: what each device holds, how it came to hold it, and a card that says so.

A name is loaded when it is first used: a device's training process reads its own data, and has no
memory to spare for all of them. So no module here has the name of something that is public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazily

if TYPE_CHECKING:
    from .federated_data import DataCard, DeviceData, EpisodeData, FederatedData
    from .formats.opened_rows import open_rows
    from .image_folders import image_folder
    from .labelled_arrays import Labelled, digits, federate, npz
    from .leaf_femnist import femnist
    from .logistic_rows import logistic
    from .omniglot_drawings import Dealt, omniglot
    from .packed.packed_check import PackedCheck, check_packed
    from .packed.packed_writer import pack
    from .partition.deal import Deal
    from .pipeline.row_pipeline import Pipeline
    from .pipeline.step_chain import Reading
    from .published import cifar10, har, idx
    from .shakespeare_plays import shakespeare
    from .sinusoid import sinusoids
    from .sources import (
        DataSettings,
        Leaves,
        NoDataError,
        Rows,
        RowType,
        SensorBuffer,
        Source,
        check_source,
        open_source,
        version_of,
    )
    from .stored_rows import StoredRows
    from .synthetic_rows import synthetic
    from .tabular.columns import frame_columns
    from .tabular.table_files import read_columns
    from .tabular.table_rows import TableRows
    from .tabular.tables import TableChoice, labelled_pair, table_of
    from .text_pieces import plain_text
    from .tokens.token_facts import TokenFacts
    from .tokens.token_federation import TokenChoice, token_texts
    from .tokens.tokenizer_file import TextTokenizer, read_tokenizer, trained_tokenizer

__getattr__, __dir__ = lazily(
    __name__,
    {
        "federated_data": "DataCard DeviceData EpisodeData FederatedData",
        "formats.opened_rows": "open_rows",
        "image_folders": "image_folder",
        "labelled_arrays": "Labelled digits federate npz",
        "leaf_femnist": "femnist",
        "logistic_rows": "logistic",
        "omniglot_drawings": "Dealt omniglot",
        "packed.packed_check": "PackedCheck check_packed",
        "packed.packed_writer": "pack",
        "partition.deal": "Deal",
        "pipeline.row_pipeline": "Pipeline",
        "pipeline.step_chain": "Reading",
        "published": "cifar10 har idx",
        "shakespeare_plays": "shakespeare",
        "sinusoid": "sinusoids",
        "sources": "DataSettings Leaves NoDataError RowType Rows SensorBuffer Source check_source"
        " open_source version_of",
        "stored_rows": "StoredRows",
        "synthetic_rows": "synthetic",
        "tabular.columns": "frame_columns",
        "tabular.table_files": "read_columns",
        "tabular.table_rows": "TableRows",
        "tabular.tables": "TableChoice labelled_pair table_of",
        "text_pieces": "plain_text",
        "tokens.token_facts": "TokenFacts",
        "tokens.token_federation": "TokenChoice token_texts",
        "tokens.tokenizer_file": "TextTokenizer read_tokenizer trained_tokenizer",
    },
)

__all__ = [
    "DataCard",
    "DataSettings",
    "Deal",
    "Dealt",
    "DeviceData",
    "EpisodeData",
    "FederatedData",
    "Labelled",
    "Leaves",
    "NoDataError",
    "PackedCheck",
    "Pipeline",
    "Reading",
    "RowType",
    "Rows",
    "SensorBuffer",
    "Source",
    "StoredRows",
    "TableChoice",
    "TableRows",
    "TextTokenizer",
    "TokenChoice",
    "TokenFacts",
    "check_packed",
    "check_source",
    "cifar10",
    "digits",
    "federate",
    "femnist",
    "frame_columns",
    "har",
    "idx",
    "image_folder",
    "labelled_pair",
    "logistic",
    "npz",
    "omniglot",
    "open_rows",
    "open_source",
    "pack",
    "plain_text",
    "read_columns",
    "read_tokenizer",
    "shakespeare",
    "sinusoids",
    "synthetic",
    "table_of",
    "token_texts",
    "trained_tokenizer",
    "version_of",
]
