"""Experiment files: those we ship are whole; mistakes in others are named, with the way out."""

import re
from dataclasses import replace

import numpy as np
import pytest

import kvib
import tiny
from kvib.lab import files, parts
from kvib.lab.experiment import quick
from kvib.lab.files import find, read
from kvib.lab.rehearsal import rehearse
from kvib.policies.regularised import RegularisedState
from kvib.sim import ServerAdam, ServerSGD, prepared
from paper import beyond, goals
from paper.claims import CLAIMS
from paper.figures import FIGURES
from places import ROOT

HERE = ROOT / "experiments"
NAMES = list(files.catalogue(HERE))


# The files we ship


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_reads_and_all_its_runs_are_built(name):
    given = find(name, HERE)
    rehearse(given)
    runs = list(given.runs())
    assert given.name == name
    assert given.task in prepared.TASKS
    assert len(runs) == sum(
        len(given.budgets) * len(given.local.learning_rates) * len(s.seeds or given.seeds)
        for s in given.samplers
    )
    assert len({run.name for run in runs}) == len(runs)
    for run in runs:
        if run.sampler.selector is None:
            policy, procedure = parts.policy(run), parts.procedure(run)
            sampler = kvib.Sampler(policy, np.ones(300), run.budget, procedure, seed=run.seed)
            assert sampler.procedure is procedure
            assert getattr(policy, "rounds", given.rounds) == given.rounds
        else:
            assert parts.selector(run, np.ones(300)).rule == parts.rule(run)
        assert parts.local(run).learning_rate == run.learning_rate
        assert parts.server(run) == ServerSGD()
        cohort = kvib.Cohort(ids=[0, 2], count=[1, 1], expected=[0.5, 0.5], weight=[0.3, 0.2])
        assert parts.coefficients(run)(cohort).shape == (2,)


def test_figures_and_claims_are_of_experiments_that_exist():
    known, pilots = set(NAMES), set(files.catalogue(HERE / "pilots"))
    shown = {need for drawing in FIGURES.values() for need in drawing.needs}
    judged = {need for claim in (*CLAIMS, *goals.CLAIMS) for need in claim.needs}
    tabled = set(beyond.FEDERATIONS)
    measured = {f"procedures-{task}" for task in goals.OPTIONS}
    told = {"text-lora-agnews"}  # in docs/text.md
    told |= {"selectors-synthetic", "selectors-femnist-v3"}  # in docs/selectors.md
    assert (
        shown | judged | tabled | told == known | pilots | measured
    )  # every experiment is for something
    commands = [claim.command.removeprefix("python experiments/").split() for claim in CLAIMS]
    for _, command, *names in commands:
        if command == "run":
            assert files.choose(ROOT / names[0])
            continue
        assert command in ("reproduce", "figure", "report")
        for name in names[:1]:
            everything = known | set(FIGURES)
            assert any(n == name or n.startswith(f"{name}-") for n in everything)


def test_seeds_of_a_samplers_own():
    runs = list(find("femnist-v3", HERE).runs())
    seeds = {run.sampler.label: set() for run in runs}
    for run in runs:
        seeds[run.sampler.label].add(run.seed)
    assert seeds.pop("optimal") == {0}
    assert set(map(tuple, seeds.values())) == {(0, 1, 2)}


def test_one_seed_of_all_before_the_next(tmp_path):
    runs = tiny.experiment(tmp_path, "seeds=[3, 1]", "budgets=[2, 5]").runs()
    assert [(run.seed, run.budget) for run in runs] == [
        (seed, budget) for seed in (1, 3) for budget in (2, 5) for _ in range(2)
    ]


def test_a_samplers_seeds_may_be_others_than_the_experiments(tmp_path):
    text = tiny.TEXT + "seeds = [7]\n"
    runs = tiny.experiment(tmp_path, text=text).runs()
    assert [(run.sampler.label, run.seed) for run in runs] == [
        ("uniform", 0),
        ("uniform", 1),
        ("K-Vib", 7),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_quick(name):
    given = find(name, HERE)
    short = quick(given)
    assert short.rounds == max(given.rounds // 10, 10)
    assert len(list(short.runs())) == len(given.samplers) * len(given.budgets) * len(
        given.local.learning_rates
    )
    assert {run.seed for run in short.runs()} == {given.seeds[0]}
    kept = replace(short, rounds=given.rounds, seeds=given.seeds, samplers=given.samplers)
    assert kept == given


def test_quick_is_never_longer(tmp_path):
    assert quick(tiny.experiment(tmp_path, "rounds=50")).rounds == 10
    assert quick(tiny.experiment(tmp_path, "rounds=4")).rounds <= 4


# What the authors released


RELEASED = HERE / "synthetic-released.toml"


def as_released(label):
    return next(run for run in read(RELEASED).runs() if run.sampler.label == label)


def test_the_released_mean_has_the_wrong_order():
    coefficients = parts.coefficients(as_released("uniform as released"))
    ones, weight = np.ones(4, int), np.array([0.1, 0.2, 0.3, 0.4])
    orders, apart = set(), 0
    for t in range(20):
        cohort = kvib.Cohort(ids=np.arange(4), count=ones, expected=ones, weight=weight, round=t)
        other = kvib.Cohort(ids=np.arange(1, 5), count=ones, expected=ones, weight=weight, round=t)
        given = coefficients(cohort)
        apart += given.tolist() != coefficients(other).tolist()  # of another seed
        assert given.tolist() == coefficients(cohort).tolist()  # also after a restart
        assert np.sort(given) == pytest.approx(weight)
        orders.add(tuple(given))
    assert len(orders) > 10
    assert apart > 10


def test_the_released_solver_takes_no_square_root():
    state = RegularisedState(omega=np.array([0.0, 3.0, 8.0]), gamma=1.0, ratio=2.0)
    ids = np.arange(3)
    published, released = (
        parts.policy(as_released(label)) for label in ("K-Vib", "K-Vib as released")
    )
    assert published.scores(state, ids) == pytest.approx([1, 2, 3])
    assert released.scores(state, ids) == pytest.approx([1, 4, 9])


# Changes


def test_changes(tmp_path):
    given = tiny.experiment(
        tmp_path,
        "rounds=7",
        "title=a bare word, or more",
        "budgets=[2.5, 3]",
        "local.batch_size=10",
        "local.learning_rates = [0.1, 1e-3]",
        "server.optimiser=adam",
        "server.options.learning_rate=0.5",
        "server.options.decay=0",
        'engine="torch"',
    )
    assert (given.rounds, given.title) == (7, "a bare word, or more")
    assert given.budgets == [2.5, 3.0]
    assert given.local.batch_size == 10
    assert given.local.learning_rates == [0.1, 0.001]
    assert given.engine == "torch"
    runs = list(given.runs())
    assert len(runs) == 2 * 2 * 2 * 2
    assert parts.server(runs[0]) == ServerAdam(learning_rate=0.5, decay=0)
    assert parts.policy(runs[1]) == kvib.KVib(rounds=7)
    assert tiny.experiment(tmp_path).rounds == 5  # the file is as it was


def test_options_of_a_policy(tmp_path):
    given = tiny.experiment(tmp_path, text=tiny.TEXT + "options = { gain = 0.1, rounds = 9 }\n")
    *_, run = given.runs()
    assert parts.policy(run) == kvib.KVib(gain=0.1, rounds=9)
    assert parts.procedure(run) is kvib.independent


@pytest.mark.filterwarnings("ignore:cool_down")
def test_what_decides_a_run(tmp_path):
    """Labels and other runs do not; everything that changes the records does."""

    def config(*changes, text=tiny.TEXT):
        return next(tiny.experiment(tmp_path, *changes, text=text).runs()).config()

    lone = tiny.TEXT.split('[[samplers]]\nlabel = "K-Vib"')[0]
    base = config()
    for text in (lone, tiny.TEXT.replace('"uniform"', '"another name"')):
        assert config(text=text) == base
    for change in ("seeds=[0, 5, 9]", "budgets=[5, 6]", "title=Another", "local.epochs=1"):
        assert config(change) == base
    for change in (
        "seeds=[5]",
        "budgets=[6]",
        "rounds=6",
        "task=synthetic-iid",
        "local.learning_rates=[0.1]",
        "local.batch_size=10",
        "local.epochs=2",
        "local.prox=0.1",
        "server.optimiser=yogi",
        "server.options.momentum=0.9",
        "evaluate_every=2",
        "train_loss_every=1",
        "exact_every=1",
        "response=0.7",
        "availability={first = 0.5, last = 1.0, by = 'size'}",
        "cool_down=2",
    ):
        assert config(change) != base, change
    for other in (
        'policy = "BySize"',
        'policy = "Uniform"\nestimator = "self_normalised"',
        'policy = "Uniform"\nresponse = "ignored"',
    ):
        assert config(text=tiny.TEXT.replace('policy = "Uniform"', other)) != base


# Stragglers


def test_an_experiment_without_stragglers_is_as_before(tmp_path):
    """Run folders of earlier versions say nothing of them, and are still taken."""
    config = next(tiny.experiment(tmp_path).runs()).config()
    assert not {"response", "availability", "cool_down"} & {*config, *config["sampler"]}


SIZES = np.array([30, 10, 20, 50, 40])


def straggling(folder, line="", *changes):
    """The second sampler of a file with stragglers, which knows of them what `line` says."""
    *_, run = tiny.experiment(folder, *changes, text=tiny.TEXT + line).runs()
    return run


def test_rates_client_by_client(tmp_path):
    run = straggling(
        tmp_path, "", "response={first = 1.0, last = 0.4, by = 'size'}", "availability=0.8"
    )
    rates = parts.rates(run, SIZES)
    assert rates["response"] == pytest.approx([0.7, 1.0, 0.85, 0.4, 0.55])
    assert rates["availability"] == 0.8
    mixed = [straggling(tmp_path, "", "response={first = 1, last = 0.4, by = 'random'}")] * 2
    first, again = (parts.rates(run, SIZES)["response"] for run in mixed)
    assert first.tolist() == again.tolist() != sorted(first)
    assert sorted(first) == pytest.approx([0.4, 0.55, 0.7, 0.85, 1.0])


@pytest.mark.parametrize("key", ["response", "availability"])
def test_what_a_sampler_knows_of_stragglers(tmp_path, key):
    change = f"{key}={{first = 1.0, last = 0.4, by = 'size'}}"
    truth, ids = parts.rates(straggling(tmp_path, "", change), SIZES)[key], np.arange(5)

    def known(line):
        sampler = parts.sampler(straggling(tmp_path, line, change), np.ones(5), SIZES)
        return getattr(
            sampler.state.rates, {"response": "answering", "availability": "available"}[key]
        )

    assert known("")(ids).tolist() == truth.tolist()
    assert known(f'{key} = "known"')(ids).tolist() == truth.tolist()
    assert known(f'{key} = "ignored"')(ids).tolist() == [1] * 5
    learning = straggling(tmp_path, f'{key} = "estimated"', change)
    assert parts.sampler(learning, np.ones(5), SIZES).state.rates.guarantee == "consistent"


@pytest.mark.filterwarnings("ignore:cool_down")
def test_clients_that_wait(tmp_path):
    run = straggling(tmp_path, "", "cool_down=3")
    sampler = parts.sampler(run, np.ones(40), np.arange(40))
    assert sampler.state.cool_down.rounds == 3


# Mistakes

SAMPLER = '{label = "a", policy = "Uniform"}'
MISTAKES = {
    "unknown sampler": (
        'samplers=[{label = "a", policy = "KVibb"}]',
        r"policy: 'KVibb' is not one of AOCS, .*; did you mean KVib\?",
    ),
    "a sampler like no other": (
        'samplers=[{label = "a", policy = "zzz"}]',
        r"policy: 'zzz' is not one of AOCS, Avare, [^;]*, KVib, [^;]*$",
    ),
    "unknown procedure": (
        'samplers=[{label = "a", policy = "Uniform", procedure = "pivotl"}]',
        r"procedure: 'pivotl' is not one of balanced, .*; did you mean pivotal\?",
    ),
    "unknown estimator": (
        'samplers=[{label = "a", policy = "Uniform", estimator = "biased"}]',
        r"estimator: 'biased' is not one of unbiased, self_normalised; did you mean unbiased\?",
    ),
    "unknown task": ("task=synthetc", r"task: 'synthetc' .*; did you mean synthetic\?"),
    "unknown engine": ("engine=tensor", r"engine: 'tensor' is not one of auto, linear, torch"),
    "unknown precision": (
        "precision=float16",
        r"precision: 'float16' is not one of float32, tf32, bf16; did you mean float32\?",
    ),
    "unknown server": (
        "server.optimiser=adamw",
        r"server.optimiser: 'adamw' is not one of sgd, adam, yogi; did you mean adam\?",
    ),
    "misspelt key": (
        "rouds=5",
        r"experiment.rouds: 'rouds' is not one of name, title, .*; did you mean rounds\?",
    ),
    "misspelt key of a table": (
        "local.batchsize=5",
        r"local.batchsize: 'batchsize' is not one of learning_rates, batch_size, epochs, prox; "
        r"did you mean batch_size\?",
    ),
    "misspelt key of a sampler": (
        'samplers=[{label = "a", policy = "Uniform", option = {}}]',
        r"samplers\[0\].option: 'option' is not one of label, .*; did you mean options\?",
    ),
    "word for a number": ("rounds=five", "rounds must be of type int, not 'five'"),
    "number for a word": ("title=5", "title must be of type str, not 5"),
    "half a round": ("rounds=5.5", "rounds must be of type int, not 5.5"),
    "no number": ("rounds=true", "rounds must be of type int, not True"),
    "one budget, not a list": ("budgets=5", "budgets must be a list, not 5"),
    "one of a list": ("seeds=[0, 'a']", r"seeds\[1\] must be of type int, not 'a'"),
    "number for a table": ("local=5", "local must be a table, not 5"),
    "number for samplers": ("samplers=3", "samplers must be a list, not 3"),
    "names for samplers": ('samplers=["KVib"]', r"samplers\[0\] must be a table, not 'KVib'"),
    "no rounds at all": ("rounds=0", "rounds = 0 is not a positive number"),
    "no label": ('samplers=[{policy = "Uniform"}]', r"samplers\[0\].label is missing"),
    "no policy": ('samplers=[{label = "a"}]', "sampler 'a': give it a policy or a selector"),
    "no batch size": ("local={learning_rates = [0.1]}", "local.batch_size is missing"),
    "two of one label": (
        f"samplers=[{SAMPLER}, {SAMPLER}]",
        "samplers: 'a' and 'a' would have the same run folders; change one",
    ),
    "two labels, one folder": (
        'samplers=[{label = "a, b", policy = "Uniform"}, {label = "A  b", policy = "KVib"}]',
        "samplers: 'a, b' and 'A  b' would have the same run folders; change one",
    ),
    "one budget twice": ("budgets=[5, 5.0]", "budgets: 5.0 and 5.0 would have the same run"),
    "one learning rate twice": (
        "local.learning_rates=[0.1, 0.2, 0.1]",
        "local.learning_rates: 0.1 and 0.1 would have the same run folders",
    ),
    "no samplers": ("samplers=[]", "samplers is empty; give at least one"),
    "no budgets": ("budgets=[]", "budgets is empty; give at least one"),
    "no seeds": ("seeds=[]", "seeds is empty; give at least one"),
    "no learning rates": (
        "local.learning_rates=[]",
        "local.learning_rates is empty; give at least one",
    ),
    "no seeds of its own": (
        'samplers=[{label = "a", policy = "Uniform", seeds = []}]',
        r"samplers\[0\].seeds is empty",
    ),
    "misspelt option": (
        'samplers=[{label = "a", policy = "KVib", options = {gian = 1}}]',
        r"options of KVib: 'gian' is not one of rounds, gain, mix, gamma, .*; did you mean gain\?",
    ),
    "bad value of an option": (
        'samplers=[{label = "a", policy = "KVib", options = {gain = -1}}]',
        "gain=-1 is not a positive number",
    ),
    "bad type of an option": (
        'samplers=[{label = "a", policy = "KVib", options = {gain = "x"}}]',
        "sampler 'a': options of KVib: gain must be of type float, not 'x'",
    ),
    "a policy and a procedure that do not go together": (
        'samplers=[{label = "a", policy = "KVib", procedure = "without_replacement"}]',
        "sampler 'a': without_replacement gives every client the same probability",
    ),
    "no table of options": (
        'samplers=[{label = "a", policy = "KVib", options = 3}]',
        r"samplers\[0\].options must be a table, not 3",
    ),
    "bad learning rate": ("local.learning_rates=[-1]", "learning_rate=-1.0 is not a positive"),
    "misspelt option of the server": (
        "server.options.lerning_rate=1",
        r"server.options: 'lerning_rate' is not one of learning_rate, momentum; "
        r"did you mean learning_rate\?",
    ),
    "bad type of a server's option": (
        "server.options.learning_rate=fast",
        "server.options.learning_rate must be of type float, not 'fast'",
    ),
    "no probability": ("response=1.5", "response = 1.5 is not a probability above 0"),
    "a client that never answers": (
        "response={first = 0.0, last = 1, by = 'size'}",
        "response.first = 0.0 is not a probability above 0 and at most 1",
    ),
    "an order that there is not": (
        "availability={first = 0.5, last = 1, by = 'sise'}",
        r"availability.by: 'sise' is not one of size, random; did you mean size\?",
    ),
    "no order": ("response={first = 0.5, last = 1}", "response.by is missing"),
    "a word for a probability": ("response=often", "response must be of type float, not 'often'"),
    "clients that wait for less than nothing": ("cool_down=-1", "cool_down=-1 is not a number of"),
    "unknown knowledge": (
        'samplers=[{label = "a", policy = "Uniform", response = "knwon"}]',
        r"response: 'knwon' is not one of known, estimated, ignored; did you mean known\?",
    ),
    "change without a value": ("rounds", "--set rounds: write it as key=value"),
    "change inside a number": ("rounds.x=5", "--set rounds.x=5: rounds has no keys of its own"),
    "change of nothing": ("=5", "''"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(tmp_path, mistake):
    change, said = MISTAKES[mistake]
    with pytest.raises(ValueError, match=said) as raised:
        rehearse(tiny.experiment(tmp_path, change))
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith((f"{tmp_path / 'tiny.toml'}: ", "tiny: ", "--set "))


@pytest.mark.parametrize("key", ["title", "task", "rounds", "budgets", "seeds"])
def test_missing_keys(tmp_path, key):
    text = re.sub(rf"^{key} = .*$", "", tiny.TEXT, flags=re.MULTILINE)
    with pytest.raises(ValueError, match=f"tiny.toml: {key} is missing"):
        tiny.experiment(tmp_path, text=text)


def test_files_that_are_no_experiment(tmp_path):
    with pytest.raises(ValueError, match=r"tiny.toml is not a TOML file: .*line 1"):
        tiny.experiment(tmp_path, text="rounds = \n")
    with pytest.raises(ValueError, match="is missing"):
        tiny.experiment(tmp_path, text="")
    (tmp_path / "latin.toml").write_bytes("title = 'é'".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.toml is not a TOML file"):
        read(tmp_path / "latin.toml")
    for path in (tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(ValueError, match=rf"no experiment file {path} \(.*; see kvib list"):
            read(path)


# Policies and estimators of your own

OWN = """
import numpy as np
import kvib
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine(kvib.BySize):
    power: float = 1.0

@dataclass(frozen=True)
class Demanding(kvib.BySize):
    power: float
    wanted: int

class Bare(kvib.Policy):
    pass

def halved(cohort):
    return cohort.coefficients / 2
"""


WRONG = """
@dataclass(frozen=True)
class Wrong(Mine):
    def scores(self, state, ids):
        return ids + None
"""


def own(folder, text=OWN, name="Mine", file="mine.py", estimator="mine.py:halved"):
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(text)
    (folder / "notes.txt").write_text("not Python")
    line = f'{{label = "a", policy = "{file}:{name}", options = {{power = 2.0}}'
    given = tiny.experiment(folder, f'samplers=[{line}, estimator = "{estimator}"}}]')
    rehearse(given)
    return given


def test_a_policy_of_your_own_lies_beside_the_experiment(tmp_path):
    run = next(own(tmp_path).runs())
    policy = parts.policy(run)
    assert repr(policy) == "Mine(power=2.0)"
    assert parts.coefficients(run).__name__ == "halved"
    sampler = kvib.Sampler(policy, [1, 2, 3], 2, parts.procedure(run), seed=0)
    assert sampler.probabilities().sum() == pytest.approx(2)


def test_a_policy_of_your_own_with_postponed_annotations(tmp_path):
    text = "from __future__ import annotations\n" + OWN
    assert repr(parts.policy(next(own(tmp_path, text).runs()))) == "Mine(power=2.0)"


def test_a_run_does_not_depend_on_where_its_policy_lies(tmp_path):
    a, b = (next(own(folder).runs()).config() for folder in (tmp_path / "a", tmp_path / "b"))
    assert a == b
    assert a["sampler"]["policy"] == "mine.py:Mine"
    assert a["sampler"]["estimator"] == "mine.py:halved"


def test_an_edited_policy_is_another(tmp_path):
    before = next(own(tmp_path).runs()).config()
    assert next(own(tmp_path, OWN + "\n# edited\n").runs()).config() != before
    assert next(own(tmp_path).runs()).config() == before
    assert "files" not in next(tiny.experiment(tmp_path).runs()).config()["sampler"]


@pytest.mark.parametrize(
    ("text", "name", "file", "said"),
    [
        (OWN, "Yours", "mine.py", "policy: .*mine.py has no Yours"),
        (OWN, "Mine", "yours.py", "policy: there is no file .*yours.py"),
        (OWN, "Mine", "notes.txt", "policy: .*notes.txt is not a Python file"),
        (OWN, "halved", "mine.py", "policy: .*mine.py:halved is not a dataclass that extends"),
        (OWN, "Bare", "mine.py", "policy: .*mine.py:Bare is not a dataclass that extends"),
        (OWN, "Demanding", "mine.py", "options of .*mine.py:Demanding: .*missing.*'wanted'"),
        (OWN.replace("float = 1.0", "str = 'a'"), "Mine", "mine.py", "power must be of type str"),
        ("class Mine(:\n", "Mine", "mine.py", "mine.py cannot be imported: SyntaxError: "),
        ("import nosuch\n", "Mine", "mine.py", "mine.py cannot be imported: ModuleNotFoundErr"),
        ("{}[1]\n", "Mine", "mine.py", "mine.py cannot be imported: KeyError: 1"),
        (OWN + WRONG, "Wrong", "mine.py", "sampler 'a': TypeError: unsupported operand"),
    ],
    ids=[
        "no such name",
        "no such file",
        "not Python",
        "no class",
        "no dataclass",
        "options missing",
        "option of another type",
        "no Python inside",
        "an import that fails",
        "a file that fails",
        "a policy that fails",
    ],
)
def test_mistakes_in_a_policy_of_your_own(tmp_path, text, name, file, said):
    with pytest.raises(ValueError, match=said):
        own(tmp_path, text, name, file)


def test_an_estimator_of_your_own_is_a_function(tmp_path):
    with pytest.raises(ValueError, match=r"'a': estimator: .*mine\.py:HALF is not a function"):
        own(tmp_path, OWN + "HALF = 0.5\n", estimator="mine.py:HALF")
    for body, said in (("0.5", "gives not one number per client"), ("c.x", "AttributeError: ")):
        with pytest.raises(ValueError, match=f"sampler 'a': .*{said}"):
            own(tmp_path, OWN + f"def half(c): return {body}\n", estimator="mine.py:half")
