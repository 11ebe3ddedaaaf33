"""Files of earlier versions open for ever, and say what they said when they were written."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import kvib

FOLDER = Path(__file__).parent / "fixtures"
FACTS = {
    folder.name: json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    for folder in sorted(FOLDER.iterdir())
    if (folder / "facts.json").exists()
}


def written(suffix):
    names = [(version, name) for version, facts in FACTS.items() for name in facts]
    return [pair for pair in names if pair[1].endswith(suffix)]


def everybody(sampler):
    return {} if sampler.state.rates.always else {"available": np.arange(len(sampler))}


def known(sampler):
    return {"norms": np.ones(len(sampler))} if sampler.policy.needs_norms else {}


def check(sampler, facts):
    assert repr(sampler).split(" in ")[0].rstrip(",>") == facts["repr"].split(" in ")[0].rstrip(
        ",>"
    )
    assert (sampler.round, len(sampler)) == (facts["round"], facts["clients"])
    assert sampler.weights.tolist() == facts["weights"]
    assert sampler.keys(np.arange(len(sampler))) == facts["keys"]


def goes_on(sampler):
    if sampler.state.check_in.is_open:
        sampler.gather([])
    for _ in range(3):
        options = known(sampler) | everybody(sampler)
        cohort = sampler.draw(**options)
        sampler.update(cohort, np.ones(len(cohort)))
    assert np.isfinite(sampler.probabilities(**(known(sampler) | everybody(sampler)))).all()


@pytest.mark.filterwarnings("ignore:guard|sketch|estimator")
@pytest.mark.parametrize(("version", "name"), written(".npz"))
def test_state_file(version, name, tmp_path):
    facts = FACTS[version][name]
    sampler = kvib.Sampler.load(FOLDER / version / name)
    check(sampler, facts)
    if facts["probabilities"] is not None and "mabs" not in name:  # its rule was wrong then
        p = sampler.probabilities(**everybody(sampler))
        assert p == pytest.approx(facts["probabilities"], rel=1e-12)
    sampler.save(tmp_path / "again.npz")
    again = kvib.Sampler.load(tmp_path / "again.npz")
    check(again, facts)
    goes_on(again)


@pytest.mark.filterwarnings("ignore:guard|sketch|estimator")
@pytest.mark.parametrize(("version", "name"), written(".kvib"))
def test_journal(version, name, tmp_path):
    facts, path = FACTS[version][name], tmp_path / name
    shutil.copy(FOLDER / version / name, path)
    with kvib.journalled(path) as sampler:
        check(sampler, facts)
        goes_on(sampler)
    with kvib.journalled(path) as sampler:  # with what this version added
        assert sampler.round == facts["round"] + 3
        for cohort in sampler.outstanding():
            sampler.update(cohort, np.ones(len(cohort)))
        goes_on(sampler)
    rounds = [logged.cohort for logged in kvib.journal.read(path).rounds()]
    assert len(rounds) == facts["round"] + 6
    for cohort, then in zip(rounds, facts["rounds"], strict=False):
        assert cohort.ids.tolist() == then["ids"]
        assert cohort.expected.tolist() == then["expected"]
