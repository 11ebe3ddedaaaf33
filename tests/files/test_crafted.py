"""Files that are whole archives and say what no sampler can have said: refused, or harmless."""

import io
import itertools
import json
import pickle
import struct
import sys
import tracemalloc
import zipfile
from contextlib import contextmanager
from zlib import crc32

import fuzz_states
import numpy as np
import pytest

import kvib
from kvib import names
from kvib.files import storage
from kvib.sim import prepared, records
from places import FIXTURES

FIRST = FIXTURES / "1191bf9"
N = 6


def played(policy=None, *procedure, step=False, rounds=4, **options):
    sampler = kvib.Sampler(policy or kvib.KVib(), np.arange(1.0, N + 1), 2, *procedure, **options)
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        known = {"norms": np.ones(N)} if sampler.policy.needs_norms else {}
        cohort = sampler.draw(**known)
        if step:
            sampler.step(cohort, 1 + 0.1 * rng.normal(size=(len(cohort), 5)))
        else:
            sampler.update(cohort, rng.lognormal(size=len(cohort)))
    return sampler


def remembering(memory, **options):
    return played(kvib.Avare(), step=True, estimator=kvib.Difference(memory), **options)


KINDS = {
    "index": lambda: played(),
    "by weight": lambda: played(kvib.KVib(mix=0.3, by_weight=True)),
    "resting": lambda: played(kvib.KVib(), cool_down=1),
    "keys": lambda: played(keys=list("abcdef")),
    "learned rate": lambda: played(kvib.Vrb(), response=kvib.EstimatedRate()),
    "known rate": lambda: played(kvib.Vrb(), response=np.linspace(0.5, 1, N)),
    "sketches": lambda: played(kvib.Forecast(), step=True, sketch=3, guard=kvib.Guard()),
    "last": lambda: remembering(kvib.LastUpdates()),
    "groups": lambda: remembering(kvib.GroupMeans(2)),
    "entries": lambda: remembering(kvib.LargestEntries(3)),
    "costs": lambda: played(cost=np.linspace(0.5, 2, N)),
    "avare": lambda: played(kvib.Avare()),
    "mabs": lambda: played(kvib.Mabs()),
    "osmd": lambda: played(kvib.OSMD()),
    "forecast": lambda: played(kvib.Forecast()),
    "optimal": lambda: played(kvib.Optimal()),
    "by size": lambda: played(kvib.BySize()),
}


def opened(sampler):
    """Header and arrays of a sampler, to be changed."""
    arrays = sampler.packed()
    header = json.loads(str(arrays.pop("header")))
    return {k: v for k, v in header.items() if k not in ("format", "arrays", "crc")}, arrays


def files(tmp_path, header, arrays):
    """These as a file of this version, with right checksums, and as one of version 1."""
    sealed = storage.headed("sampler", header, arrays)
    storage.write(tmp_path / "2.npz", sealed)
    plain = json.dumps({"format": "kvib sampler", **header, "version": 1})
    np.savez(tmp_path / "1.npz", **{**sealed, "header": np.array(plain)})
    return tmp_path / "2.npz", tmp_path / "1.npz"


def changed(array, value, at=...):
    array = array.copy()
    array[at] = value
    return array


# Values


def of(name, value, at=...):
    """Another value in an array."""
    return lambda header, arrays: {name: changed(arrays[name], value, at)}


def new(name, array):
    """Another array."""
    return lambda header, arrays: {name: np.asarray(array)}


NAN, INF = np.nan, np.inf
ARRAYS = {
    "weights, sum": ("index", "weights", lambda h, a: {"weights": 100 * a["weights"]}),
    "weights, nan": ("index", "weight", of("weights", NAN)),
    "weights, table": ("index", "weights", lambda h, a: {"weights": a["weights"][:, None]}),
    "updated, 3": ("index", "updated", of("updated", 3)),
    "updated, wide": ("index", "updated", lambda h, a: {"updated": a["updated"] * 1.0}),
    "variables, flat": ("index", "variables", new("variables", np.zeros(N))),
    "variables, nan": ("index", "variables", new("variables", np.full((N, 1), NAN))),
    "cost, nan": ("index", "state.omega", of("state.omega", NAN)),
    "cost, negative": ("index", "state.omega", of("state.omega", -1, 2)),
    "cost, infinite": ("index", "state.omega", of("state.omega", INF, 2)),
    "gamma, 0": ("index", "state.gamma", new("state.gamma", 0.0)),
    "ratio, nan": ("index", "state.ratio", new("state.ratio", NAN)),
    "gone, unknown": ("index", "population.gone", new("population.gone", [99])),
    "gone, negative": ("index", "population.gone", new("population.gone", [-1])),
    "gone, twice": ("index", "population.gone", new("population.gone", [1, 1])),
    "gone, all": ("index", "population.gone", new("population.gone", np.arange(N))),
    "gone, one": ("index", "weights|gone", new("population.gone", [1])),
    "gone, floats": ("index", "population.gone", new("population.gone", [1.0])),
    "keys, no json": ("keys", "population.keys", new("population.keys", np.uint8([123]))),
    "keys, no list": ("keys", "population.keys", new("population.keys", np.uint8([123, 125]))),
    "keys, few": ("keys", "keys", new("population.keys", np.frombuffer(b'["a"]', np.uint8))),
    "keys, twice": (
        "keys",
        "listed twice",
        new("population.keys", np.frombuffer(b'["a","b","c","d","e","a"]', np.uint8)),
    ),
    "keys, null": (
        "keys",
        "neither a string nor",
        new("population.keys", np.frombuffer(b'["a","b","c","d","e",null]', np.uint8)),
    ),
    "keys, deep": (
        "keys",
        "population.keys",
        new("population.keys", np.frombuffer(b"[" * 10**5, np.uint8)),
    ),
    "response, 7": ("index", "response.known", new("response.known", [7.0])),
    "response, 0": ("index", "response.known", new("response.known", [0.0])),
    "response, nan": ("index", "response.known", new("response.known", [NAN])),
    "availability, 2": ("index", "availability.known", new("availability.known", [2.0])),
    "rate of one": ("known rate", "response.known", of("response.known", 1.5, 3)),
    "hits": ("learned rate", "response.hits", of("response.hits", 9, 0)),
    "trials": ("learned rate", "response.trials", of("response.trials", -1, 0)),
    "total": ("learned rate", "response", new("response.total_trials", 1000)),
    "strength": ("learned rate", "response.strength", new("response.strength", 0.0)),
    "resting, unknown": ("resting", "resting.ids", of("resting.ids", 99, 0)),
    "resting, twice": (
        "resting",
        "resting.ids",
        lambda h, a: {
            "resting.ids": np.zeros(2, int),
            "resting.rounds": np.full(2, h["round"] - 1),
        },
    ),
    "resting, for ever": ("resting", "resting.rounds", of("resting.rounds", 10**9)),
    "resting, long ago": ("resting", "resting.rounds", of("resting.rounds", 0)),
    "resting, short": ("resting", "resting.rounds", new("resting.rounds", np.arange(1))),
    "order, unknown": ("index", "index.main.order", of("index.main.order", 10**6)),
    "order, negative": ("index", "index.main.order", of("index.main.order", -1, 0)),
    "order, twice": ("index", "index.main.order", of("index.main.order", 0)),
    "order, short": (
        "index",
        "index.main.order",
        lambda h, a: {"index.main.order": a["index.main.order"][:3]},
    ),
    "start, far": ("index", "index.main.start", of("index.main.start", 10**6)),
    "start, negative": ("index", "index.main.start", of("index.main.start", -(10**6), 5)),
    "start, around": (
        "index",
        "index.main.start",
        lambda h, a: {"index.main.start": a["index.main.start"][::-1].copy()},
    ),
    "start, beyond": (
        "index",
        "index.main.start",
        of("index.main.start", [2**63 - 1, -(2**63)], slice(1, 3)),
    ),
    "start, short": ("index", "index.main.start", new("index.main.start", [0, N])),
    "sums, nan": ("index", "index.main.sums", of("index.main.sums", NAN)),
    "sums, short": ("index", "index.main.sums", new("index.main.sums", [1.0])),
    "totals, nan": ("index", "index.totals", of("index.totals", NAN)),
    "totals, infinite": ("by weight", "index.totals", of("index.totals", INF, 2)),
    "place": ("index", "index.main.place", new("index.main.place", np.arange(N))),
    "by weight": ("by weight", "index.by_weight.order", of("index.by_weight.order", 0)),
    "sketches, infinite": ("sketches", "sketches.rows", of("sketches.rows", INF, 0)),
    "sketches, large": ("sketches", "sketches.rows", new("sketches.rows", np.zeros((N, 9)))),
    "returns, nan": ("sketches", "sketches.returns", of("sketches.returns", NAN, 1)),
    "returns, negative": ("sketches", "sketches.returns", of("sketches.returns", -1, 3)),
    "beta": ("last", "estimator.learned", of("estimator.learned", 2.0, 0)),
    "learned, nan": ("last", "estimator.learned", of("estimator.learned", NAN, 1)),
    "learned, short": ("last", "estimator.learned", new("estimator.learned", np.zeros(3))),
    "memory of a stranger": ("last", "memory.ids", of("estimator.memory.ids", 99, 0)),
    "memory, twice": ("last", "memory.ids", of("estimator.memory.ids", 0)),
    "memory, nan": ("last", "memory.rows", of("estimator.memory.rows", NAN, 0)),
    "memory, narrow": ("last", "memory.rows", new("estimator.memory.rows", np.zeros((N, 2)))),
    "total, nan": ("last", "memory.total", of("estimator.memory.total", NAN, 0)),
    "group, unknown": ("groups", "memory.group", of("estimator.memory.group", 3, 0)),
    "sizes, negative": ("groups", "memory.sizes", of("estimator.memory.sizes", -1, 0)),
    "means, few": ("groups", "memory.means", new("estimator.memory.means", np.zeros((2, 5)))),
    "means, nan": ("groups", "memory.means", of("estimator.memory.means", NAN, 0)),
    "where": ("entries", "memory.where", of("estimator.memory.where", 5, 0)),
    "value": ("entries", "memory.value", of("estimator.memory.value", INF, 0)),
    "costs, nan": ("costs", "cost", of("cost.each", NAN)),
    "costs, few": ("costs", "cost", new("cost.each", np.ones(2))),
    "seen": ("forecast", "state.seen", of("state.seen", 10**9, 0)),
    "precision": ("forecast", "state.precision", of("state.precision", -1, 0)),
    "covariance": ("forecast", "state.slope_covariance", of("state.slope_covariance", -1)),
    "covariance, nan": ("forecast", "state.slope_covariance", of("state.slope_covariance", NAN)),
    "slope, long": ("forecast", "state.slope", new("state.slope", np.zeros(5))),
    "moments": ("forecast", "state.returns", of("state.returns", 1e9, 1)),
    "fitted": ("forecast", "state.fitted", new("state.fitted", 10**6)),
    "round": ("forecast", "state.round", new("state.round", 10**6)),
    "experts": ("osmd", "state.experts", lambda h, a: {"state.experts": a["state.experts"][:1]}),
    "trust": ("osmd", "state.log_trust", of("state.log_trust", 700.0)),
    "peak": ("mabs", "state.peak", new("state.peak", -1.0)),
}
"""What is changed in which kind of sampler, and what the error names."""

POPULATION = {"unit": [1.0, 1.0], "total": [1.0, 0.0], "changed": False, "named": False}
HEADERS = {
    "budget, nan": {"budget": NAN},
    "budget, negative": {"budget": -1.0},
    "budget, infinite": {"budget": INF},
    "budget, text": {"budget": "2"},
    "budget, true": {"budget": True},
    "seed, negative": {"seed": -1},
    "seed, text": {"seed": "0"},
    "round, many": {"round": 10**9},
    "round, negative": {"round": -1},
    "round, part": {"round": 4.0},
    "usual, 0": {"usual": 0},
    "usual, nan": {"usual": NAN},
    "usual, null": {"usual": None},
    "usual step, 0": {"usual step": 0.0},
    "usual step, text": {"usual step": "long"},
    "token, number": {"token": 5},
    "token, empty": {"token": ""},
    "check-in, text": {"check-in": "no"},
    "over-select, text": {"over-select": "no"},
    "cool down, negative": {"cool down": -1},
    "cool down, text": {"cool down": "1"},
    "sketch, many": {"sketch": 10**12},
    "sketch, part": {"sketch": 0.5},
    "guard, other": {"guard": {"name": "Difference", "fields": {}}},
    "guard, text": {"guard": {"name": "Guard", "fields": {"limit": "x"}}},
    "guard, list": {"guard": ["Guard"]},
    "policy, list": {"policy": ["KVib"]},
    "policy, mix": {"policy": {"name": "KVib", "fields": {"mix": -3.0}}},
    "policy, text": {"policy": {"name": "KVib", "fields": {"mix": "x"}}},
    "policy, name": {"policy": {"name": ["KVib"], "fields": {}}},
    "policy, rounds": {"policy": {"name": "KVib", "fields": {"rounds": 1e300}}},
    "policy, experts": {"policy": {"name": "OSMD", "fields": {"experts": 10**9}}},
    "policy, steps": {"policy": {"name": "AOCS", "fields": {"steps": "x"}}},
    "procedure, list": {"procedure": ["independent"]},
    "estimator, groups": {
        "estimator": {
            "name": "Difference",
            "fields": {"memory": {"name": "GroupMeans", "fields": {"groups": 10**12}}},
        }
    },
    "population, null": {"population": None},
    "population, empty": {"population": {}},
    "total, 0": {"population": {**POPULATION, "total": [0.0, 0.0], "changed": True}},
    "total, nan": {"population": {**POPULATION, "total": [NAN, 0.0]}},
    "total, 2": {"population": {**POPULATION, "total": [2.0, 0.0]}},
    "total, text": {"population": {**POPULATION, "total": "ab"}},
    "unit, text": {"population": {**POPULATION, "unit": "ab"}},
    "unit, 0": {"population": {**POPULATION, "unit": [0.0, 1.0]}},
    "unit, three": {"population": {**POPULATION, "unit": [1.0, 1.0, 1.0]}},
    "changed, text": {"population": {**POPULATION, "changed": "no"}},
    "named, true": {"population": {**POPULATION, "named": True}},
}


@pytest.mark.filterwarnings("ignore:sketch|estimator|guard")
@pytest.mark.parametrize("case", ARRAYS)
def test_an_array_that_no_sampler_packed(tmp_path, case):
    kind, message, change = ARRAYS[case]
    header, arrays = opened(KINDS[kind]())
    arrays |= change(header, arrays)
    for path in files(tmp_path, header, arrays):
        with pytest.raises(ValueError, match=rf"not a whole kvib sampler file \(.*({message})"):
            kvib.Sampler.load(path)
    with pytest.raises(ValueError, match=message):
        kvib.Sampler.unpacked(storage.headed("sampler", header, arrays))


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_no_sampler_wrote(tmp_path, case):
    header, arrays = opened(KINDS["index"]())
    for path in files(tmp_path, header | HEADERS[case], arrays):
        with pytest.raises(ValueError, match=r"[12]\.npz(:| is not a whole kvib sampler file)"):
            kvib.Sampler.load(path)


@pytest.mark.filterwarnings("ignore:sketch|estimator|guard")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_or_too_many(tmp_path, kind):
    """Without any one of its arrays a state is refused; with one that it does not know, too."""
    sampler = KINDS[kind]()
    whole = sampler.packed()
    assert fuzz_states.fingerprint(kvib.Sampler.unpacked(whole).packed()) == (
        fuzz_states.fingerprint(whole)
    )
    for name in whole:
        with pytest.raises(ValueError, match=name):
            kvib.Sampler.unpacked({k: v for k, v in whole.items() if k != name})
    header, arrays = opened(sampler)
    for name in ("bomb", "state.bomb", "index.bomb", "population.bomb", "estimator.bomb", "cost.x"):
        with pytest.raises(ValueError, match=name):
            kvib.Sampler.unpacked({**whole, name: np.zeros(2)})
        for path in files(tmp_path, header, {**arrays, name: np.zeros(2)}):
            with pytest.raises(ValueError, match=name.split(".")[-1]):
                kvib.Sampler.load(path)


def works(sampler):
    """Rounds whose probabilities are some: positive, up to the cap, with the budget for a sum."""
    N, rng = len(sampler), np.random.default_rng(0)
    assert sampler.weights.sum() == pytest.approx(1)
    known = {"norms": np.ones(N)} if sampler.policy.needs_norms else {}
    known |= {} if sampler.state.rates.always else {"available": np.arange(N)}
    for _ in range(3):
        p, price = sampler.probabilities(**known), sampler.state.prices.of(np.arange(N))
        here = np.setdiff1d(np.arange(N), sampler.state.cool_down.ids)
        assert (p[here] > 0).all()
        assert p.max() <= sampler.procedure.cap * (1 + 1e-9)
        assert p @ price == pytest.approx(
            min(sampler.state.prices.requested(None, N), price[here].sum())
        )
        cohort = sampler.draw(**known)
        if sampler.state.memory is None and sampler.state.sketches.size == 0:
            sampler.update(cohort, rng.lognormal(size=len(cohort)))
        else:
            sampler.step(cohort, rng.normal(size=(len(cohort), 5)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_in_any_array_is_refused_or_harmless(kind):
    header, arrays = opened(KINDS[kind]())
    refused = 0
    for name in set(arrays) - {"population.keys"}:
        whole, first = arrays[name], (0,) * arrays[name].ndim
        cases = [(NAN, ...), (-1, ...), (0.5, ...), (1e300, ...)]
        cases += [(INF, first), (0, first), (7, first)] if whole.size else []
        for value, at in cases:
            with np.errstate(invalid="ignore"):
                other = changed(whole, np.asarray(value).astype(whole.dtype), at)
            if other.tobytes() == whole.tobytes():
                continue
            try:
                sealed = storage.headed("sampler", header, {**arrays, name: other})
                sampler = kvib.Sampler.unpacked(sealed)
            except ValueError:
                refused += 1
            else:
                works(sampler)
    assert refused > 40


def test_every_field_of_a_policy_has_its_range():
    """A field without one could say anything."""
    setting = kvib.policies.Setting(np.full(N, 1 / N), 2.0, 1.0, np.zeros((N, 1)))
    for policy in names.POLICIES.values():
        assert set(policy.ranges) == set(policy().start(setting)._fields), policy


# Sums that follow from the rest


@pytest.mark.parametrize("version", [0, 1], ids=["this version", "version 1"])
def test_a_layout_of_other_scores_is_made_anew(tmp_path, version):
    """As when the rule of a policy has become another: draws have the new probabilities."""
    sampler = KINDS["by weight"]()
    header, arrays = opened(sampler)
    arrays["index.main.sums"] = arrays["index.main.sums"] * 3
    arrays["index.totals"] = arrays["index.totals"] * 5
    turned = arrays["index.by_weight.start"].copy()
    turned[:] = 0
    turned[1024:] = N
    arrays["index.by_weight.start"] = turned
    loaded = kvib.Sampler.load(files(tmp_path, header, arrays)[version])
    assert loaded.probabilities() == pytest.approx(sampler.probabilities(), rel=1e-12)
    assert loaded.draw().budget == pytest.approx(2)
    index, right = loaded.state.index, sampler.state.index
    assert index.totals.sum(axis=1) == pytest.approx(right.totals.sum(axis=1), rel=1e-12)
    assert index.main.sums.sum(axis=0) == pytest.approx(right.main.sums.sum(axis=0), rel=1e-12)
    assert index.by_weight.start.tolist() == right.by_weight.start.tolist()


@pytest.mark.parametrize("kind", ["last", "entries"])
def test_a_sum_of_memories_that_is_none(tmp_path, kind):
    """Σλh is what the estimate stands on: another would bias every step."""
    sampler = KINDS[kind]()
    header, arrays = opened(sampler)
    arrays["estimator.memory.total"] = arrays["estimator.memory.total"] + 0.5
    assert sampler.state.memory.beta > 0
    for path in files(tmp_path, header, arrays):
        loaded = kvib.Sampler.load(path)
        assert loaded.state.memory.known() == pytest.approx(sampler.state.memory.known(), rel=1e-6)


# Version 1, which lists no arrays


def test_version_1_without_what_its_header_implies(tmp_path):
    """Memory that a β was learned from, and costs that a budget is in."""
    header, arrays = opened(KINDS["last"]())
    kept = {name: a for name, a in arrays.items() if not name.startswith("estimator.memory")}
    with pytest.raises(ValueError, match=r"estimator\.memory is missing"):
        kvib.Sampler.load(files(tmp_path, header, kept)[1])
    header, arrays = opened(KINDS["costs"]())
    del arrays["cost.each"]
    with pytest.raises(ValueError, match=r"cost\.each is missing"):
        kvib.Sampler.load(files(tmp_path, header, arrays)[1])


@pytest.mark.filterwarnings("ignore:guard|sketch|estimator")
def test_version_1_whose_memory_is_known_by_a_step(tmp_path):
    """After one step β is still 0, but the guard knows of it."""
    with np.load(FIRST / "remember.npz") as file:
        arrays = dict(file)
    arrays["estimator.learned"] = np.zeros(4)
    kept = {name: a for name, a in arrays.items() if not name.startswith("estimator.memory")}
    np.savez(tmp_path / "1.npz", **kept)
    with pytest.raises(ValueError, match=r"estimator\.memory is missing"):
        kvib.Sampler.load(tmp_path / "1.npz")


@pytest.mark.parametrize("name", ["remember", "memory-groups", "cost", "kvib", "keys"])
def test_entries_hidden_in_the_directory_of_version_1(tmp_path, name):
    """The comment of one swallows the next, as a flipped bit of its length does."""
    hide_each(tmp_path / "1.npz", (FIRST / f"{name}.npz").read_bytes())


@pytest.mark.parametrize("kind", ["last", "costs", "keys"])
def test_entries_hidden_in_a_directory(tmp_path, kind):
    KINDS[kind]().save(tmp_path / "2.npz")
    hide_each(tmp_path / "2.npz", (tmp_path / "2.npz").read_bytes())


def hide_each(path, whole):
    """Refused, whichever entry swallows all that follow it."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        at, count = archive.start_dir, len(archive.infolist())
    starts = [at]
    for _ in range(count):
        starts.append(starts[-1] + 46 + sum(struct.unpack_from("<3H", whole, starts[-1] + 28)))
    for start, end in itertools.pairwise(starts[:-1]):
        broken = bytearray(whole)
        struct.pack_into("<H", broken, start + 32, starts[-1] - end)
        path.write_bytes(broken)
        with zipfile.ZipFile(path) as archive:
            assert len(archive.infolist()) < count
        with pytest.raises(ValueError, match="its directory hides entries"):
            kvib.Sampler.load(path)


# Archives


def npy(shape, dtype="<f8", body=b""):
    file = io.BytesIO()
    about = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue() + body


def said(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def crafted(path, entries, method=zipfile.ZIP_STORED, listed=True, **more):
    """A sampler's file with other entries, which its header lists if it shall."""
    header, arrays = opened(KINDS["index"]())
    contents = {f"{name}.npy": said(array) for name, array in arrays.items()} | entries
    about = {"format": "kvib sampler", **header, **more}
    if listed:
        about["arrays"] = {name.removesuffix(".npy"): crc32(c) for name, c in contents.items()}
        about["crc"] = crc32(json.dumps(about).encode())
    else:
        about["version"] = 1
    contents.setdefault("header.npy", said(np.array(json.dumps(about))))
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


class Evil:
    def __reduce__(self):
        return (sys.exit, ("unpickled",))


ENTRIES = {
    "10^15 numbers": {"weights.npy": npy((10**15,))},
    "3·10^8 numbers": {"weights.npy": npy((3 * 10**8,))},
    "negative": {"weights.npy": npy((-5,))},
    "too short": {"weights.npy": npy((N,), body=bytes(8))},
    "too long": {"weights.npy": npy((N,), body=bytes(8 * N + 1))},
    "objects": {"weights.npy": npy((1,), "|O", pickle.dumps([Evil()]))},
    "records": {"weights.npy": npy((N,), [("a", "<f8")], bytes(8 * N))},
    "dates": {"weights.npy": npy((N,), "<M8[s]", bytes(8 * N))},
    "pickle": {"weights.npy": pickle.dumps(Evil())},
    "no code": {"weights.npy": b"\x93NUMPY\x01\x00\x10\x00" + b"('" * 8},
    "deep code": {"weights.npy": b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10000},
    "nothing": {"weights.npy": b""},
    "text": {"notes.txt": b"hello"},
    "up": {"../../evil.npy": said(np.zeros(1))},
    "deep header": {"header.npy": said(np.array("[" * 200_000 + "]" * 200_000))},
    "list for a header": {"header.npy": said(np.array("[1]"))},
    "numbers for a header": {"header.npy": said(np.arange(3))},
    "large header": {"header.npy": npy((), f"<U{10**7}", bytes(4 * 10**7))},
}
FEW = 2**23
"""Bytes that may be made of a file of some kilobytes."""


@contextmanager
def refused_at_once(message):
    """A ValueError, before any large array is made."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            yield
        assert tracemalloc.get_traced_memory()[1] < FEW
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "version 1"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("case", ENTRIES)
@pytest.mark.filterwarnings("ignore:Reading `.npy`")
def test_an_archive_that_claims_too_much(tmp_path, case, method, listed):
    path = crafted(tmp_path / "x.npz", ENTRIES[case], method, listed)
    with refused_at_once(r"x\.npz is not a whole kvib sampler file"):
        kvib.Sampler.load(path)


def test_the_crafted_archive_without_its_flaw(tmp_path):
    """So that the others are refused for theirs."""
    for listed in (True, False):
        assert kvib.Sampler.load(crafted(tmp_path / "x.npz", {}, listed=listed)).round == 4


def test_two_entries_of_one_name(tmp_path):
    path = crafted(tmp_path / "x.npz", {})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("weights.npy", said(np.ones(N)))
    with pytest.raises(ValueError, match="two of its entries have one name"):
        kvib.Sampler.load(path)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "version 1"])
def test_what_is_not_known_is_not_unpacked(tmp_path, listed):
    """A hundred megabytes of zeros in a hundred kilobytes."""
    bomb = {"bomb.npy": npy((10**8 // 8,), body=bytes(10**8))}
    path = crafted(tmp_path / "x.npz", bomb, zipfile.ZIP_DEFLATED, listed)
    with refused_at_once("bomb"):
        kvib.Sampler.load(path)


def test_a_header_is_sealed(tmp_path):
    """Its own checksum, beside that of the archive."""
    path = tmp_path / "x.npz"
    KINDS["index"]().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    text = str(arrays["header"])
    for old, other in (('"seed": 0', '"seed": 1'), ('"version": 2', '"version": 1')):
        np.savez(path, **{**arrays, "header": np.array(text.replace(old, other))})
        with pytest.raises(ValueError, match="its header does not match its checksum"):
            kvib.Sampler.load(path)


def test_an_array_is_sealed(tmp_path):
    """Another one of the same kind, in a sound archive."""
    path = tmp_path / "x.npz"
    KINDS["index"]().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    for other in (arrays["state.omega"] * 2, arrays["state.omega"].astype(">f8")):
        np.savez(path, **{**arrays, "state.omega": other})
        with pytest.raises(ValueError, match=r"state\.omega do not match their checksums"):
            kvib.Sampler.load(path)


# Other files that are kept alike


def cut(path):
    """Every file that lacks one of its entries."""
    with zipfile.ZipFile(path) as archive:
        entries = {info: archive.read(info) for info in archive.infolist()}
    for gone in entries:
        with zipfile.ZipFile(path, "w") as archive:
            for info, content in entries.items():
                if info is not gone:
                    archive.writestr(info, content)
        yield gone.filename.removesuffix(".npy")


def test_a_checkpoint_without_one_of_its_arrays(tmp_path):
    simulation, path = fuzz_states.new_simulation(), tmp_path / "checkpoint.npz"
    list(simulation.run(rounds=2, folder=tmp_path))
    assert path.stat().st_mode & 0o777 == 0o600
    for name in cut(path):
        other = fuzz_states.new_simulation()
        with pytest.raises(ValueError, match=rf"not a whole kvib simulation file \(.*{name}"):
            other.load(path)
        assert other.records == []
        with pytest.raises(ValueError, match=name):
            records.read(tmp_path)


def test_a_task_without_one_of_its_arrays(tmp_path):
    path = tmp_path / "task.npz"
    prepared.prepare(fuzz_states.synthetic(clients=3, seed=1), path)
    for name in cut(path):
        with pytest.raises(ValueError, match=rf"not a whole kvib task file \(.*{name}"):
            prepared.read(path)


def as_version_1(path):
    """The same file as the first version wrote it: headers without lists and checksums."""
    with np.load(path) as file:
        arrays = dict(file)
    for name in [name for name in arrays if name.split(".")[-1] == "header"]:
        said = json.loads(str(arrays[name]))
        plain = {k: v for k, v in said.items() if k not in ("arrays", "crc")}
        arrays[name] = np.array(json.dumps({**plain, "version": 1}))
    save = np.savez_compressed if "x" in arrays else np.savez  # tasks are compressed
    save(path, **arrays)


def test_checkpoints_and_tasks_of_version_1(tmp_path):
    straight, resumed = fuzz_states.new_simulation(), fuzz_states.new_simulation()
    list(straight.run(rounds=3))
    list(fuzz_states.new_simulation().run(rounds=2, folder=tmp_path))
    as_version_1(tmp_path / "checkpoint.npz")
    assert len(records.read(tmp_path)) == 2
    assert [record.round for record in resumed.run(rounds=3, folder=tmp_path)] == [2]
    assert resumed.model.tobytes() == straight.model.tobytes()
    task = fuzz_states.synthetic(clients=3, seed=1)
    prepared.prepare(task, tmp_path / "task.npz")
    as_version_1(tmp_path / "task.npz")
    assert prepared.read(tmp_path / "task.npz").fingerprint == task.fingerprint
