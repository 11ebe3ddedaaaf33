"""Text tasks: what is read, tokenised, dealt out and trained, and what goes wrong."""

import json
import lzma
import os
import shutil
import warnings
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from places import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import kvib  # noqa: E402
import tiny  # noqa: E402
from kvib.files import storage  # noqa: E402
from kvib.lab import runs  # noqa: E402
from kvib.sim import LocalSGD, Simulation, prepared  # noqa: E402
from kvib.sim.engines import sequential  # noqa: E402
from kvib.sim.engines.batched import BatchedTrainer  # noqa: E402
from kvib.sim.engines.engine import MemoryShortError  # noqa: E402
from kvib.sim.engines.reference import ReferenceEngine  # noqa: E402
from kvib.sim.engines.torch_engine import TorchEngine  # noqa: E402
from kvib.sim.local import local_batches  # noqa: E402
from kvib.sim.text import (  # noqa: E402
    Adapted,
    Classifier,
    NextToken,
    Tokens,
    agnews,
    blocks,
    corpora,
    encode,
    newswire,
    shakespeare,
    tail_sizes,
    tokenizer,
)
from kvib.sim.text.models import check_vocabulary, pretrained  # noqa: E402
from kvib.sim.text.modules import losses_of_rows  # noqa: E402
from kvib.sim.text.partition import blocks_by_client  # noqa: E402
from kvib.sim.text.tokens import padded  # noqa: E402
from tiny_text import BERT, DISTIL, NEOX, WORDS, classification, language, write_data  # noqa: E402

LOCAL = LocalSGD(0.2, batch_size=4, epochs=2)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Small files in `KVIB_DATA`, an empty `KVIB_CACHE`."""
    (tmp_path / "data").mkdir()
    write_data(tmp_path / "data")
    monkeypatch.setenv("KVIB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("KVIB_CACHE", str(tmp_path / "cache"))
    return tmp_path


# Partition


TAILS = {1: (0.39, 0.388, 0.388), 2: (0.76, 0.739, 0.749), 3: (0.94, 0.893, 0.915)}
"""Share of the largest tenth: of the notes, and of 12,000 and 20,000 samples, of whom each client
has at least one: half of them have no more for σ = 2, three quarters for σ = 3."""


@pytest.mark.parametrize("sigma", TAILS)
@pytest.mark.parametrize(("at", "samples"), [(1, 12_000), (2, 20_000)])
def test_tails_as_in_the_notes(sigma, at, samples):
    tops = []
    for seed in range(40):
        sizes = tail_sizes(samples, 1000, sigma, seed)
        assert sizes.sum() == samples
        assert sizes.min() >= 1
        tops.append(np.sort(sizes)[-100:].sum() / samples)
    notes, true = TAILS[sigma][0], TAILS[sigma][at]
    assert np.mean(tops) == pytest.approx(true, abs=0.001)  # 40 seeds, always the same
    assert true == pytest.approx(notes, abs=0.05)


def test_a_tail_is_one_factor_for_all_who_have_more_than_one():
    rng = np.random.Generator(np.random.PCG64([5, 8]))
    shares = np.exp(3 * rng.standard_normal(1000))
    sizes = tail_sizes(12_000, 1000, 3.0, seed=5)
    factor = sizes.max() / shares.max()
    np.testing.assert_allclose(sizes, np.maximum(1, factor * shares), atol=1.1)


def test_a_tail_at_its_ends():
    assert (tail_sizes(7, 7, 3.0) == 1).all()
    assert sorted(tail_sizes(8, 7, 3.0)) == [1] * 6 + [2]
    assert tail_sizes(70, 7, 0.0).tolist() == [10] * 7
    with pytest.raises(ValueError, match="5 samples cannot be dealt to 6 clients"):
        tail_sizes(5, 6, 1.0)
    with pytest.raises(ValueError, match="sigma=-1"):
        tail_sizes(5, 3, -1)


def test_blocks_by_hand():
    tokens = Tokens(np.arange(11, dtype=np.uint16), np.array([5, 2, 4]), 11)
    assert blocks(tokens, 3).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    rows, counts = blocks_by_client(tokens, ["a", "b", "c"], 2)
    assert rows.tolist() == [[0, 1], [2, 3], [5, 6], [7, 8], [9, 10]]
    assert counts.tolist() == [2, 1, 2]
    rows, counts = blocks_by_client(tokens, ["a", "b", "c"], 4, leave_out=True)
    assert rows.tolist() == [[0, 1, 2, 3], [7, 8, 9, 10]]
    assert counts.tolist() == [1, 1]


def test_clients_without_a_full_block():
    tokens = Tokens(np.arange(7, dtype=np.uint16), np.array([5, 2]), 7)
    with pytest.raises(ValueError, match=r"client 'b' has 2 tokens, not one full block of 3; .*"):
        blocks_by_client(tokens, ["a", "b"], 3)
    with pytest.raises(ValueError, match="no client has one full block of 9 tokens"):
        blocks_by_client(tokens, ["a", "b"], 9, leave_out=True)
    with pytest.raises(ValueError, match="7 tokens do not fill one block of 8"):
        blocks(tokens, 8)


def test_documents_are_padded_and_cut():
    tokens = Tokens(np.array([2, 7, 3, 2, 8, 9, 6, 3], np.uint16), np.array([3, 5]), 10)
    assert padded(tokens, 4).tolist() == [[2, 7, 3, 0], [2, 8, 9, 3]]
    assert padded(tokens, 5).tolist() == [[2, 7, 3, 0, 0], [2, 8, 9, 6, 3]]
    assert padded(tokens, 3).tolist() == [[2, 7, 3], [2, 8, 3]]


# Reading


def test_tokens_of_documents(data):
    words = tokenizer("bert")
    found = encode(words, ["Oil bank", "CUP?"], special=True)
    assert found.values.tolist() == [2, 5, 6, 3, 2, 8, 1, 3]
    assert (found.sizes.tolist(), found.vocabulary) == ([4, 4], len(WORDS))
    assert found.values.dtype == np.uint16


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_documents(data, text):
    with pytest.raises(ValueError, match="document 1 is empty; leave empty documents out"):
        encode(tokenizer("neox"), ["oil", text])
    with pytest.raises(ValueError, match="there are no documents"):
        encode(tokenizer("neox"), [])


@pytest.mark.parametrize("text", ["\u200b", "\x00\x01"])
@pytest.mark.parametrize("special", [False, True])
def test_documents_that_the_tokenizer_drops(data, text, special):
    """What is put around a document does not make it one."""
    with pytest.raises(ValueError, match=r"document 1 has no token \(.*\); leave it out"):
        encode(tokenizer("bert"), ["oil", text], special=special)


def small_bert():
    return Classifier({**BERT, "vocab_size": len(WORDS)}, 4)


def test_agnews_from_files(data, monkeypatch):
    made = agnews(1.0, clients=20, rows=40, length=12, model=small_bert)
    assert (len(made), made.train.x.shape, made.test[0].shape) == (20, (40, 12), (10, 12))
    assert made.train.x.dtype == np.uint16
    # The cache stands for the data and the tokenizer, and says where they came from.
    assert [place.name for place in (data / "cache").iterdir()] == ["agnews-bert-12-local-v2"]
    monkeypatch.delenv("KVIB_DATA")
    again = agnews(1.0, clients=20, rows=40, length=12, model=small_bert)
    assert again.fingerprint == made.fingerprint
    with pytest.raises(ValueError, match=r"rows=99, but there are only 49; take fewer"):
        agnews(1.0, clients=20, rows=99, length=12, model=small_bert)


def test_newswire_and_shakespeare_from_files(data):
    model = NextToken({**NEOX, "vocab_size": len(WORDS)})
    news = newswire(2.0, clients=20, rows=None, length=12, model=model)
    assert len(news) == 20
    assert news.train.x.shape == news.train.y.shape
    assert (news.train.x[:, 1:] == news.train.y[:, :-1]).all()
    ends = np.count_nonzero(news.train.x == 0) + np.count_nonzero(news.test[0] == 0)
    assert 80 < ends <= 99  # of 99 documents; the rest of the last block is left out
    roles = shakespeare(length=8, model=model)
    assert roles.train.sizes.tolist() == [4, 4, 3]  # D says too little
    engine = TorchEngine(roles, LOCAL)
    assert engine.evaluate(engine.initial(0), "train").loss == pytest.approx(
        np.log(len(WORDS)), rel=0.1
    )


def test_a_tokenizer_of_another_model(data):
    with pytest.raises(ValueError, match=r"has 13 tokens, the model 9 embeddings; give a model="):
        newswire(1.0, 20, None, 12, NextToken({**NEOX, "vocab_size": 9}))
    trained = Classifier({**BERT, "vocab_size": 30522}, 4, {"w": np.zeros(1)})
    with pytest.raises(ValueError, match=r"28996 tokens.*or from scratch with vocab_size 28996"):
        check_vocabulary(trained, 28996)  # cased BERT
    check_vocabulary(trained, 30522)
    check_vocabulary(trained, 30500)  # embeddings may be padded, as Pythia's are
    check_vocabulary(NextToken(), 50277)


def test_nothing_here_and_no_hub(tmp_path, monkeypatch):
    monkeypatch.setenv("KVIB_CACHE", str(tmp_path))
    monkeypatch.delenv("KVIB_DATA", raising=False)
    with pytest.raises(ValueError, match="KVIB_DATA is not set; set it to a folder"):
        corpora.shakespeare()

    def unreachable(*_, **__):
        raise ConnectionError("no route")

    with pytest.raises(ValueError, match=r"the hub did not answer \(no route\): KVIB_DATA is not"):
        corpora.from_hub("fancyzhx/ag_news", "train", corpora.AG_NEWS, unreachable)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    with pytest.raises(ValueError, match=r"the hub did not answer \(no route\).* minilm"):
        pretrained("distilbert-base-uncased", 4)
    assert not list(tmp_path.iterdir())  # nothing half made is left
    monkeypatch.setenv("KVIB_DATA", str(tmp_path))
    monkeypatch.setattr("tokenizers.Tokenizer.from_pretrained", unreachable)
    with pytest.raises(ValueError, match=r"the hub did not answer .*tokenizer_gptneox20b.json.xz"):
        tokenizer("neox")
    with pytest.raises(ValueError, match="tokenizer 'gpt' is not one of bert, neox"):
        tokenizer("gpt")


def test_the_hubs_columns():
    class Rows(dict):
        column_names = ("text", "label")

    rows = Rows(text=["oil", " "], label=[1, 2])
    found = corpora.from_hub("name", "train", "file", lambda *_, **__: rows)
    assert found == {"text": ["oil", " "], "label": [1, 2]}


def small_news():
    """All blocks of the newswire, whoever has them."""
    task = newswire(1.0, 20, None, 12, NextToken({**NEOX, "vocab_size": 13}))
    return np.sort(task.train.x, axis=0)


def fewer(path):
    """The file with its first half only."""
    import polars as pl

    rows = pl.read_parquet(path)
    rows.head(len(rows) // 2).write_parquet(path)


@pytest.mark.parametrize("file", [corpora.REUTERS, corpora.AG_NEWS])
def test_other_data_is_tokenised_again(data, file, monkeypatch):
    before = small_news()
    [place] = (data / "cache").iterdir()
    held = np.load(place / "blocks.npy", mmap_mode="r")
    copy = np.array(held)
    fewer(data / "data" / file)
    after = small_news()
    assert len(after) < len(before)
    assert [p.name for p in (data / "cache").iterdir()] == [place.name]  # nothing old is left
    np.testing.assert_array_equal(held, copy)  # whoever has it open keeps it
    monkeypatch.delenv("KVIB_DATA")
    np.testing.assert_array_equal(small_news(), after)


def test_another_tokenizer_tokenises_again(data):
    small_news()
    [words] = (data / "data").glob("tokenizer_gptneox*")
    text = lzma.decompress(words.read_bytes()).decode()
    words.write_bytes(
        lzma.compress(text.replace('"oil": 5, "bank": 6', '"oil": 6, "bank": 5').encode())
    )
    [place] = (data / "cache").iterdir()
    before = np.array(np.load(place / "blocks.npy"))
    small_news()
    swapped = np.where(before == 5, 6, np.where(before == 6, 5, before))
    np.testing.assert_array_equal(np.load(place / "blocks.npy"), swapped)


def test_the_same_data_is_not_tokenised_again(data, monkeypatch):
    small_news()
    shutil.copytree(data / "data", data / "elsewhere")
    monkeypatch.setenv("KVIB_DATA", str(data / "elsewhere"))
    monkeypatch.setattr(corpora, "newswire", None)
    small_news()


def test_a_cache_that_does_not_say_what_it_was_made_of(data, monkeypatch):
    """It stands where there is no data, as on a GPU machine; where there is, nobody can tell."""
    made = small_news()
    [place] = (data / "cache").iterdir()
    (place / "made_of.json").unlink()
    fewer(data / "data" / corpora.REUTERS)
    with monkeypatch.context() as away:
        away.delenv("KVIB_DATA")
        np.testing.assert_array_equal(small_news(), made)
    assert not (place / "made_of.json").exists()
    assert len(small_news()) < len(made)
    assert set(json.loads((place / "made_of.json").read_text())) == {
        corpora.REUTERS,
        corpora.AG_NEWS,
        "tokenizer_gptneox20b.json.xz",
    }


def test_another_process_made_it_meanwhile(data, monkeypatch):
    """The first one stays, and nothing else."""
    small_news()
    [place] = (data / "cache").iterdir()
    fewer(data / "data" / corpora.REUTERS)
    read, rename = corpora.newswire, os.rename

    def also():
        monkeypatch.setattr(corpora, "newswire", read)
        small_news()
        monkeypatch.setattr(os, "rename", counted)
        return read()

    renamed = []

    def counted(*paths):
        renamed.append(paths)
        rename(*paths)

    monkeypatch.setattr(corpora, "newswire", also)
    small_news()
    assert len(renamed) == 1  # its own, in vain
    assert [p.name for p in (data / "cache").iterdir()] == [place.name]


def test_the_newswire_reads_its_files_once(data, monkeypatch):
    read, seen = corpora.local, []
    monkeypatch.setattr(corpora, "local", lambda name: seen.append(name) or read(name))
    assert len(corpora.newswire()) == 99
    assert seen == [corpora.REUTERS, corpora.AG_NEWS]


def test_a_damaged_cache(data):
    newswire(1.0, 20, None, 12, NextToken({**NEOX, "vocab_size": 13}))
    [file] = (data / "cache").glob("*/blocks.npy")
    file.write_bytes(b"x")
    with pytest.raises(ValueError, match=r"is damaged .* remove it, it is made again"):
        newswire(1.0, 20, None, 12, NextToken({**NEOX, "vocab_size": 13}))


# Training


def adapted():
    """Low-rank adapters beside a frozen encoder."""
    task = classification()
    return replace(task, model=Adapted(task.model, rank=2))


TASKS = {
    "bert": classification,
    "distilbert": lambda: classification(DISTIL),
    "adapted": adapted,
    "neox": language,
    "neox, sdpa": lambda: language(attention="sdpa"),
}


@pytest.mark.parametrize("name", TASKS)
def test_engines_train_language_models_alike(name):
    task = TASKS[name]()
    reference, ids = ReferenceEngine(task, LOCAL), np.array([1, 4, 7])
    model = reference.initial(3)
    batches = local_batches(task.train, ids, LOCAL, 0, 0)
    wanted = reference.updates(model, batches)
    engines = {"in turn": TorchEngine(task, LOCAL)}
    if "sdpa" not in name:
        engines["batched"] = TorchEngine(task, LOCAL, batched=True)
        assert engines["batched"].slow == ""
    else:
        with pytest.warns(UserWarning, match=r"clients train slowly: torch.func.vmap cannot take"):
            engines["batched"] = TorchEngine(task, LOCAL, batched=True)
    for how, engine in engines.items():
        got = engine.updates(model, batches)
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5, msg=how)
        factors = np.array([0.5, 2.0, 1.0])
        norms, total = engine.summed(model, batches, factors)
        np.testing.assert_allclose(norms, reference.norms(wanted), rtol=1e-4)
        expected = reference.combine(factors, wanted)
        torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-5)


class Operations(TorchDispatchMode):
    """Counts them."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count[operation.name()] += 1
        return operation(*args, **(kwargs or {}))


def test_causal_attention_needs_no_mask():
    """The same losses as transformers' own, nothing that waits for the device, and no mask."""
    import transformers

    tokens = torch.arange(24).reshape(2, 12)
    ours = NextToken(NEOX, "sdpa")()
    config = transformers.GPTNeoXConfig(**NEOX, attn_implementation="sdpa")
    theirs = transformers.GPTNeoXForCausalLM(config)
    theirs.load_state_dict(ours.model.state_dict(), strict=False)
    counts = []
    for module in (ours, partial(theirs, use_cache=False)):
        with Operations() as seen:
            found = module(tokens)
        counts.append(seen.count)
    torch.testing.assert_close(ours(tokens), found.logits)
    assert counts[1]["aten::_local_scalar_dense"] == 1
    assert counts[0]["aten::_local_scalar_dense"] == counts[0]["aten::cumsum"] == 0
    assert counts[0].total() < counts[1].total()
    later = tokens.clone()
    later[:, -1] = 0  # what comes later changes nothing before
    torch.testing.assert_close(ours(later)[:, :-1], ours(tokens)[:, :-1])


def test_losses_in_half_precision():
    """The gradient is the exact one, rounded once, as autocast would round it."""
    rng = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(50, 1000, generator=rng)).bfloat16()
    targets = torch.randint(1000, (50,), generator=rng)
    half, single = logits.clone().requires_grad_(), logits.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = losses_of_rows(half, targets)
    wanted = losses_of_rows(single, targets)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.004)
    found.mean().backward()
    wanted.mean().backward()
    error = (half.grad.float() - single.grad).norm() / single.grad.norm()
    rounding = (single.grad.bfloat16().float() - single.grad).norm() / single.grad.norm()
    assert error < 1.2 * rounding


@pytest.mark.parametrize("batched", [False, True])
def test_half_precision_trains_alike(batched):
    task, ids = language(), np.array([1, 4, 7])
    exact, half = TorchEngine(task, LOCAL), TorchEngine(task, LOCAL, "cpu", "bf16", batched)
    model, batches = exact.initial(3), local_batches(task.train, ids, LOCAL, 0, 0)
    wanted, found = (e.updates(model, batches) for e in (exact, half))
    assert (found - wanted).norm() < 0.02 * wanted.norm()


def test_a_fresh_model_is_made_once():
    task = language()
    engine = TorchEngine(task, LOCAL)
    for seed in (0, 3, 3, 0):
        wanted = TorchEngine(task, LOCAL).initial(seed)
        model = engine.initial(seed)
        assert torch.equal(model, wanted)
        engine.updates(model, local_batches(task.train, np.array([1, 4]), LOCAL, 0, 0))
        model.zero_()


def test_logits_count_where_clients_train_together():
    """12 tokens of 60 logits: as much as the model itself for batches of 400."""
    task, local = language(), LocalSGD(0.2, batch_size=400)
    d = len(TorchEngine(task, local).flat.vector)
    alone, together = (
        TorchEngine(task, local, batched=batched, chunk_bytes=1e9).chunk
        for batched in (False, True)
    )
    assert alone == int(1e9 / (24 * d))
    assert together == int(1e9 / (24 * d + 12 * 12 * 60 * 400))


def test_graphs_outlive_larger_groups(monkeypatch):
    """Room is made once, for all clients that fit; batches are as wide as powers of two."""
    task = language()
    engine = TorchEngine(task, LOCAL, batched=True)
    model, kept = engine.initial(0), []
    for ids in ([1, 4], [0, 1, 2, 3, 4, 5, 6, 7], np.arange(20)):
        engine.updates(model, local_batches(task.train, np.array(ids), LOCAL, 0, 0))
        steps = engine._batched._steps
        assert all(steps[key] is step for key, step in kept)
        kept = list(steps.items())
    assert {width for _, width in steps} <= {1, 2, 4}


def simulation(task, memory=16e9, rounds=6, policy=None, **options):
    sampler = kvib.Sampler(policy or kvib.Forecast(), task.weights, 5, **options)
    engine = TorchEngine(task, LOCAL, chunk_bytes=memory)
    return Simulation(task, engine, sampler, LOCAL, evaluate_every=2, seed=1)


@pytest.mark.parametrize("name", ["bert", "neox", "adapted"])
def test_language_models_learn(name):
    run = simulation(TASKS[name]())
    losses = [r.loss for r in run.run(9) if not np.isnan(r.loss)]
    assert losses[-1] < losses[0] - 0.02


@pytest.mark.parametrize("procedure", [kvib.pivotal, kvib.independent, kvib.with_replacement])
def test_updates_added_up_one_by_one_are_the_same_run(procedure):
    """Memory for one update or for all of them: cohorts, norms and models agree."""
    task = language()
    together = simulation(task, procedure=procedure)
    in_turn = simulation(task, memory=1, procedure=procedure)
    assert in_turn.engine.chunk == 1
    for a, b in zip(together.run(4), in_turn.run(4), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_allclose(a.norms, b.norms, rtol=1e-5)
        if procedure is kvib.independent:
            assert a.estimated_variance == pytest.approx(b.estimated_variance, rel=1e-4)
    torch.testing.assert_close(together.model, in_turn.model, rtol=1e-5, atol=1e-6)


def test_a_client_that_diverges_where_updates_are_added_up():
    task = language()
    local = LocalSGD(1e30, batch_size=4)
    sampler = kvib.Sampler(kvib.Uniform(), task.weights, 5)
    run = Simulation(task, TorchEngine(task, local, chunk_bytes=1), sampler, local)
    with pytest.raises(kvib.sim.DivergedError, match=r"client \d+ diverged in round 0"):
        run.round()


@pytest.mark.parametrize("make", [classification, adapted, language])
def test_prepared_files(tmp_path, make):
    task = make()
    if make is not language:
        encoder = classification().model().encoder
        halves = {n: p.detach().numpy().astype(np.float16) for n, p in encoder.named_parameters()}
        model = replace(classification().model, weights=halves)
        task = replace(task, model=Adapted(model, rank=3) if make is adapted else model)
    prepared.prepare(task, tmp_path / "task.npz")
    again = prepared.read(tmp_path / "task.npz")
    assert again.fingerprint == task.fingerprint
    a, b = TorchEngine(task, LOCAL), TorchEngine(again, LOCAL)
    model = a.initial(2)
    assert torch.equal(model, b.initial(2))
    assert a.evaluate(model, "test") == pytest.approx(b.evaluate(model, "test"), nan_ok=True)


@pytest.mark.parametrize("model", [Classifier(BERT, 4), Classifier(DISTIL, 4), NextToken(NEOX)])
def test_adapters_begin_as_the_model_and_are_all_that_moves(model):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = model()
        torch.manual_seed(0)
        module = Adapted(model, rank=2)()
    tokens = torch.from_numpy(classification().test[0][:5].astype(np.int64))
    torch.testing.assert_close(module(tokens), whole(tokens))
    trained = {n for n, p in module.named_parameters() if p.requires_grad}
    ends = {"down.weight", "up.weight"}
    head = {"head.weight", "head.bias"} if isinstance(model, Classifier) else set()
    assert {".".join(n.split(".")[-2:]) for n in trained - head} == ends
    layers = [m for m in whole.modules() if isinstance(m, torch.nn.Linear)]
    assert len(trained - head) == 2 * (len(layers) - 1)  # all but the one of the outputs
    assert trained >= head


def test_adapters_of_no_rank():
    with pytest.raises(ValueError, match="rank=0: an adapter has at least rank 1"):
        Adapted(NextToken(NEOX), rank=0)


def test_agnews_with_adapters(data):
    made = agnews(1.0, clients=20, rows=40, length=12, model=small_bert, adapters=2)
    assert made.name == "agnews-lora-1"
    engine = TorchEngine(made, LOCAL, batched=True)
    assert engine.slow == ""
    assert len(engine.initial(0)) < engine.flat.frozen / 10
    assert engine.chunk < 16e9 / (12 * engine.flat.frozen)  # activations of what is frozen too


def test_an_unknown_kind_of_model(tmp_path):
    task = language()
    prepared.prepare(task, tmp_path / "task.npz")
    path = tmp_path / "task.npz"
    about, arrays = storage.read(path, "task", prepared.ARRAYS, compressed=True)
    other = json.loads(storage.plain_json(about).replace("next-token", "recurrent"))
    storage.write(path, storage.headed("task", other, arrays), compressed=True)
    with pytest.raises(ValueError, match=r"of the kind 'recurrent', not one of softmax, .*again"):
        prepared.read(tmp_path / "task.npz")


def test_weights_of_another_model():
    task = classification()
    lacking = replace(task.model, weights={"embeddings.word_embeddings.weight": np.zeros((60, 64))})
    with pytest.raises(ValueError, match=r"the weights lack .* of another architecture"):
        lacking()
    encoder = task.model().encoder
    wrong = {n: np.zeros((3,), np.float16) for n, _ in encoder.named_parameters()}
    with pytest.raises(ValueError, match=r"is \(3,\) in the weights, \(60, 64\) in the model"):
        replace(task.model, weights=wrong)()


HEADS = ("pooler.dense.weight", "cls.predictions.bias", "vocab_projector.weight", "classifier.bias")
OLD = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


@pytest.mark.parametrize("config", [BERT, DISTIL], ids=["bert", "distilbert"])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("prefix", [False, True])
def test_weights_of_the_hub(tmp_path, monkeypatch, config, old, prefix):
    """Names as the first BERTs have them; heads of other tasks are not kept."""
    from safetensors.numpy import save_file

    encoder = Classifier(config, 4)().encoder
    wanted = {n: p.detach().numpy().astype(np.float16) for n, p in encoder.named_parameters()}
    given = {}
    for name, value in wanted.items():
        for new, before in OLD.items() if old else ():
            name = name.replace(new, before)
        given[f"{config['model_type']}.{name}" if prefix else name] = value.astype(np.float32)
    given |= {name: np.zeros(3, np.float32) for name in HEADS}
    given["embeddings.position_ids"] = np.arange(16)
    save_file(given, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda _, file: tmp_path / file)
    monkeypatch.setenv("KVIB_CACHE", str(tmp_path / "cache"))
    model = pretrained("somebody/bert", 4)
    assert model.weights.keys() == wanted.keys()
    for name, parameter in model().encoder.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), wanted[name].astype(np.float32))


@pytest.mark.parametrize("batched", [False, True])
def test_out_of_memory_names_the_setting(batched, monkeypatch):
    task = language()
    engine = TorchEngine(task, LOCAL, batched=batched)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    batches = local_batches(task.train, np.array([1, 4]), LOCAL, 0, 0)
    monkeypatch.setattr(engine, "loss", full)
    trainer = engine._batched if batched else engine._sequential
    monkeypatch.setattr(trainer, "loss", full)
    wanted = (
        r"lower batch_size \(now 4\), or chunk_bytes \(now 1.6e\+10" if batched else "batch_size"
    )
    with pytest.raises(MemoryShortError, match=wanted):
        engine.updates(engine.initial(0), batches)


def test_out_of_memory_is_no_reason_to_train_slowly(monkeypatch):
    """A device that others have filled says nothing about the module."""

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 14 MiB")

    monkeypatch.setattr(BatchedTrainer, "_gradients", full)
    with pytest.raises(MemoryShortError, match=r"lower batch_size \(now 4\), or chunk_bytes"):
        TorchEngine(language(), LOCAL, batched=True)


def test_pythia_has_the_size_of_its_name():
    with torch.device("meta"):
        module = NextToken()()
    assert sum(p.numel() for p in module.parameters() if p.requires_grad) == 70_426_624


def test_minilm_with_and_without_its_pooler():
    """22.7 M and 22.6 M; the head has 1,540."""
    import transformers

    size = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
    size |= {"intermediate_size": 1536, "vocab_size": 30522, "max_position_embeddings": 512}
    with torch.device("meta"):
        whole = transformers.BertModel(transformers.BertConfig(**size))
        ours = Classifier(size, 4)()
    numbers = [sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (whole, ours)]
    assert numbers == [22_713_216, 22_565_376 + 1_540]


# Recorded steps, without a GPU


def recorded(step, pool):
    """What a CUDA graph does: the step is taken twice before anybody replays it."""
    step()
    step()
    return step


@pytest.mark.parametrize("prox", [0.0, 0.5])
def test_recorded_steps_train_alike(prox, monkeypatch):
    monkeypatch.setattr(sequential, "graph", recorded)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    task, local = language(), LocalSGD(0.2, batch_size=4, epochs=2, prox=prox)
    engine, reference = TorchEngine(task, local, graphs=True), ReferenceEngine(task, local)
    lengths = set()
    for t in range(2):
        model = reference.initial(t)
        batches = local_batches(task.train, np.array([1, 4, 7]) + t, local, 0, t)
        lengths |= {*batches.lengths.tolist()}
        wanted = reference.updates(model, batches)
        torch.testing.assert_close(engine.updates(model, batches), wanted, rtol=1e-3, atol=1e-5)
    assert engine._sequential._steps.keys() == lengths


def test_steps_that_cannot_be_recorded(monkeypatch):
    def refuse(step, pool):
        step()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(sequential, "graph", refuse)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    task = language()
    engine, reference = TorchEngine(task, LOCAL, graphs=True), ReferenceEngine(task, LOCAL)
    model, batches = reference.initial(0), local_batches(task.train, np.array([1, 4]), LOCAL, 0, 0)
    wanted = reference.updates(model, batches)
    with pytest.warns(UserWarning, match="clients train slowly: operation not permitted"):
        found = engine.updates(model, batches)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
    assert engine.slow == "operation not permitted when stream is capturing"


# Benchmarks and experiments


def test_the_benchmark_in_small(tmp_path):
    import text as benchmark

    whole = benchmark.main(["--tiny", "--out", str(tmp_path)])
    assert (tmp_path / "text.json").exists()
    for rows in whole["results"].values():
        assert all(row["tokens/s"] > 0 and row.get("error", 0) < 0.05 for row in rows)
    assert all(row["share of the bf16 rate"] > 0 for row in whole["results"]["next token"])


def test_operations_by_hand():
    """Pythia-70M: 44.7 M weights that multiply; the embedding of the input is a look-up."""
    import text as benchmark
    from kvib.sim.text.models import PYTHIA_70M

    without_attention = benchmark.operations(dict(PYTHIA_70M), 0, head=True)
    assert without_attention == 6 * (70_426_624 - 50304 * 512 - 6 * (9 * 512 + 2048) - 1024)


@pytest.mark.parametrize("kind", ["agnews-1", "newswire-1"])
def test_an_experiment_goes_on_where_it_was(data, kind, monkeypatch):
    """As on a GPU machine: nothing but the cache, stopped and resumed."""
    from kvib.lab.files import find
    from kvib.lab.folders import read_rounds
    from kvib.lab.runs import play

    small = {
        "agnews-1": lambda: agnews(1, 20, 40, 12, small_bert),
        "newswire-1": lambda: newswire(1, 20, None, 12, NextToken({**NEOX, "vocab_size": 13})),
    }
    monkeypatch.setitem(prepared.TASKS, kind, small[kind])
    changes = ("rounds=4", "budgets=[5]", "local.batch_size=4", "precision=float32")
    given = find(f"text-{kind}", ROOT / "experiments", changes)
    assert {s.label for s in given.samplers} >= {"uniform", "K-Vib", "Forecast", "recommended"}
    for run in [r for r in given.runs() if r.sampler.label in ("K-Vib", "recommended")]:
        runs.make_task.cache_clear()
        straight = play(run, data / "straight")
        stopped = play(run, data / "stopped", deadline=0.0)
        assert (stopped.rounds, stopped.finished) == (1, False)
        assert play(run, data / "stopped").finished
        assert straight.finished
        a, b = (read_rounds(data / where / run.name) for where in ("straight", "stopped"))
        assert a.equals(b, null_equal=True)
    runs.make_task.cache_clear()


def device(monkeypatch, tmp_path, *words):
    """The script for a GPU machine, in this process."""
    import runpy
    import sys

    script = ROOT / "experiments/device.py"
    given = ["--runs", str(tmp_path / "runs"), "--device", "cpu", *words]
    file = tiny.write(
        tmp_path, tiny.TEXT.replace("seeds = [0, 1]", 'seeds = [0]\nengine = "torch"')
    )
    monkeypatch.setattr(sys, "argv", [str(script), str(file), *given])
    monkeypatch.setenv("PYTHONWARNINGS", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    with warnings.catch_warnings():
        runpy.run_path(str(script), run_name="__main__")


def test_a_run_without_memory_does_not_end_the_others(monkeypatch, tmp_path, capsys):
    calls = []
    train = TorchEngine.updates

    def sometimes(self, *given):
        calls.append(1)
        if len(calls) == 1:
            raise MemoryShortError("no room: lower batch_size")
        return train(self, *given)

    monkeypatch.setattr(TorchEngine, "updates", sometimes)
    device(monkeypatch, tmp_path)
    said = capsys.readouterr().out
    assert "no room: lower batch_size" in said
    assert said.splitlines()[-1].endswith("1 of 2 runs are finished")


def test_a_run_that_cannot_be_fast_is_stopped_on_demand(monkeypatch, tmp_path):
    train = TorchEngine.updates

    def slowly(self, *given):
        self._warn_slow("it waits")
        return train(self, *given)

    monkeypatch.setattr(TorchEngine, "updates", slowly)
    with pytest.raises(SystemExit, match="clients train slowly: it waits"):
        device(monkeypatch, tmp_path, "--require-graphs")


@pytest.mark.parametrize("d", [5, 64, 1003])
def test_sketches_of_arrays_and_tensors(d):
    """The same signs in every place and precision, drawn once."""
    from kvib.estimators import tensors

    given = np.random.default_rng(0).normal(size=(3, d)).astype(np.float32)
    signs = tensors.sketch(np.eye(d), 32).sum(1)
    wanted = np.zeros((3, 32))
    for k in range(d):
        wanted[:, k % 32] += signs[k] * given[:, k]
    assert set(signs) == {-1.0, 1.0}
    for found in (given, given.astype(np.float64), torch.tensor(given), torch.tensor(given[:0])):
        np.testing.assert_allclose(tensors.sketch(found, 32), wanted[: len(found)], rtol=1e-12)
    half = torch.tensor(given).bfloat16()
    wanted = tensors.sketch(half.double(), 32)
    np.testing.assert_allclose(tensors.sketch(half, 32), wanted, rtol=1e-12)
    kept = tensors._signs(half, 32)
    assert tensors._signs(half[:1], 32) is kept
