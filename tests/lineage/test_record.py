import hashlib
import json
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.errors import LineageError
from rufus_core.lineage import Candidate, Decision, FileEntry, Record, Timings, canonical_json
from rufus_core.lineage.record import dump_record, is_as_written, read_record

NOW = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def record(**changes):
    fields = {
        "kind": "checkpoint",
        "version": "1",
        "name": "stages/sft/checkpoint",
        "fingerprint": "ab" * 32,
        "digest": "cd" * 32,
        "files": {"model.bin": FileEntry(size=3, sha256="ef" * 32)},
        "published": NOW,
        "timings": Timings(started=NOW, ended=NOW, seconds=0.5),
        "decision": Decision(rule="peak", metric="m", chosen_step=3, candidates=(Candidate(step=3, value=0.5),)),
    }
    return Record(**{**fields, **changes})


@given(
    st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=4),
    st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans()), max_size=4),
)
def test_a_record_reads_back_as_it_was(tmp_path_factory, metrics, config):
    file = tmp_path_factory.mktemp("record") / "record.json"
    written = record(metrics=metrics, config=config)
    file.write_text(dump_record(written))
    assert read_record(file) == written


def test_a_nan_metric_stays_visible(tmp_path):
    file = tmp_path / "record.json"
    file.write_text(dump_record(record(metrics={"loss": math.nan})))
    assert json.loads(file.read_text())["metrics"]["loss"] == "NaN"
    assert math.isnan(read_record(file).metrics["loss"])


def test_a_configuration_that_is_not_json_is_refused_by_its_place():
    with pytest.raises(LineageError, match="nan") as caught:
        dump_record(record(config={"lr": math.nan}))
    assert caught.value.where == "$.config.lr"


def sealed(**content):
    """A record file that is whole but lacks fields."""
    seal = hashlib.sha256(canonical_json(content).encode()).hexdigest()
    return json.dumps({**content, "seal": seal})


def alter(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.write_text(""), "not JSON"),
        (lambda file: file.write_bytes(b"\xff\xfe\x00"), "not JSON"),
        (lambda file: file.write_text("[1]"), "not a record"),
        (lambda file: file.write_text('{"a": 1}'), "not a record"),
        (lambda file: file.write_text(file.read_text()[:-9]), "not JSON"),
        (lambda file: alter(file, schema_version=0), "schema version 0"),
        (lambda file: alter(file, schema_version="x"), "schema version 'x'"),
        (lambda file: alter(file, seed=8), "altered"),
        (lambda file: alter(file, seal="00"), "altered"),
        (lambda file: alter(file, files={"x": float("nan")}), "not JSON"),
        (lambda file: file.write_text("[" * 100_000), "not JSON"),
        (lambda file: file.write_text(sealed(schema_version=1, name="x")), "kind is wrong"),
        (lambda file: (file.unlink(), file.mkdir()), "can't read"),
    ],
)
def test_a_record_that_can_not_be_read_is_told_with_its_file(tmp_path, spoil, said):
    file = tmp_path / "record.json"
    file.write_text(dump_record(record(seed=7)))
    spoil(file)
    with pytest.raises(LineageError, match=said) as caught:
        read_record(file)
    assert str(file) in str(caught.value)


def test_a_record_of_the_first_version_reads(tmp_path):
    file = tmp_path / "record.json"
    content = json.loads(record().model_dump_json())
    del content["provenance"]["image"]
    file.write_text(sealed(**{**content, "schema_version": 1}))
    found = read_record(file)
    assert (found.schema_version, found.provenance.image, found.digest) == (1, None, "cd" * 32)


def test_a_byte_that_the_seal_does_not_cover_shows(tmp_path):
    file = tmp_path / "record.json"
    text = dump_record(record(seed=7))
    file.write_text(text)
    assert is_as_written(file)
    file.write_text(text.replace(' "seed"', '\t"seed"'))
    assert read_record(file).seed == 7
    assert not is_as_written(file)


def test_the_order_of_settings_survives(tmp_path):
    file = tmp_path / "record.json"
    file.write_text(dump_record(record(config={"sources": {"b": {}, "a": {}}})))
    assert list(read_record(file).config["sources"]) == ["b", "a"]
