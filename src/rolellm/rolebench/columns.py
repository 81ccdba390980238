"""The columns of each config, as Arrow schemas. Apart from the configs, so that naming those needs no Arrow."""

from __future__ import annotations

import pyarrow as pa

from rolellm.rolebench.schema import Config

ROW_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("role", pa.string()),
        ("language", pa.string()),
        ("subset", pa.string()),
        ("question", pa.string()),
        ("references", pa.list_(pa.string())),
        ("reference_types", pa.list_(pa.string())),
        ("raw_reference", pa.string()),
        ("rolegpt", pa.string()),
        ("role_description", pa.string()),
    ]
)

ROLE_SCHEMA = pa.schema(
    [
        ("role", pa.string()),
        ("language", pa.string()),
        ("description", pa.string()),
        ("catchphrases", pa.list_(pa.string())),
        ("script", pa.string()),
    ]
)

INSTRUCTION_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("language", pa.string()),
        ("subset", pa.string()),
        ("role", pa.string()),
        ("instruction", pa.string()),
        ("target", pa.string()),
        ("type", pa.string()),
        ("confidence", pa.string()),
    ]
)


def schema_of(config: Config) -> pa.Schema:
    """The Arrow schema of a config's rows."""
    if config.name == "roles":
        return ROLE_SCHEMA
    if config.name == "instructions":
        return INSTRUCTION_SCHEMA
    return ROW_SCHEMA
