"""Studies: production first, the same trials after a kill, verdicts that noise does not make."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from sqlalchemy.exc import IntegrityError

from policies.store import StoreUnavailableError, StoreUrlError
from tests.tuner.tune.synthetic import PRODUCTION, SPACE, Synthetic, flat, hill
from tuner.settings import SettingsError
from tuner.tune.search import SearchOptions, Verdict, search
from tuner.tune.storage import default_storage, open_storage
from tuner.tune.study import PRODUCTION_EVERY, SamplerName, Study, Trial

OPTIONS = SearchOptions(trials=24, rounds=3, patience=10)


def begin(storage: BaseStorage, *, sampler: SamplerName = "tpe", seed: int = 0, name: str = "s") -> Study:
    return Study(storage, name, SPACE, PRODUCTION, {"ground": "synthetic"}, sampler=sampler, seed=seed)


def run(study: Study, objective: Synthetic, options: SearchOptions = OPTIONS) -> Verdict:
    return asyncio.run(search(study, objective, options, lambda trial, noise: None))


def test_production_is_trial_0_and_comes_again_to_tell_the_noise() -> None:
    study = begin(InMemoryStorage())
    told: list[tuple[Trial, float]] = []
    asyncio.run(search(study, Synthetic(hill), OPTIONS, lambda trial, noise: told.append((trial, noise))))
    assert [trial.number for trial, _ in told] == list(range(len(told)))
    assert told[0][0].values == PRODUCTION
    assert all(trial.is_production for trial, _ in told if trial.number % PRODUCTION_EVERY == 0)


def test_the_noise_is_what_production_against_itself_shows() -> None:
    """A round's ratio has a noise of 2 %, a trial of three rounds 2 % over the root of 3."""
    options = SearchOptions(trials=1, rounds=3)
    found = [run(begin(InMemoryStorage()), Synthetic(hill, seed=seed), options).noise for seed in range(40)]
    assert math.sqrt(sum(noise**2 for noise in found) / len(found)) == pytest.approx(0.02 / math.sqrt(3), rel=0.2)


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
@pytest.mark.parametrize("killed_after", [0, 1, 10])
def test_a_study_that_was_killed_goes_on_with_the_same_trials(
    sampler: SamplerName, killed_after: int, tmp_path: Path
) -> None:
    """A kill while a candidate is measured leaves it proposed and never told."""
    options = replace(OPTIONS, trials=18, patience=18)
    whole = begin(open_storage(f"sqlite:///{tmp_path}/whole.db"), sampler=sampler)
    expected = run(whole, Synthetic(hill), options)
    url = f"sqlite:///{tmp_path}/killed.db"
    with pytest.raises(KeyboardInterrupt):
        run(begin(open_storage(url), sampler=sampler), Synthetic(hill, limit=killed_after), options)
    assert len(begin(open_storage(url), sampler=sampler).trials) == killed_after
    resumed = begin(open_storage(url), sampler=sampler)
    objective = Synthetic(hill)
    assert run(resumed, objective, options) == expected
    assert resumed.trials == whole.trials
    assert len(objective.measured) == len(whole.trials) - killed_after + 1, "and the best once more"


def test_a_finished_study_is_told_again_without_measuring(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    first = run(begin(open_storage(url)), Synthetic(hill))
    objective = Synthetic(hill)
    assert run(begin(open_storage(url)), objective) == first
    assert objective.measured == []


@pytest.mark.parametrize(("sampler", "seeds"), [("tpe", 5), ("gp", 1)])
def test_a_better_setting_is_found_and_confirmed(sampler: SamplerName, seeds: int) -> None:
    options = SearchOptions(trials=40, rounds=3, patience=20)
    verdicts = [
        run(begin(InMemoryStorage(), sampler=sampler, seed=100 * seed), Synthetic(hill, seed=seed), options)
        for seed in range(seeds)
    ]
    for verdict in verdicts:
        assert verdict.beats_production
        assert verdict.best is not None
        assert verdict.interval is not None
        assert hill(verdict.best.values) > 1.12
        assert verdict.interval.low < 1.2 < verdict.interval.high * 1.1


def test_where_nothing_is_better_few_studies_say_otherwise() -> None:
    """The best of many lucky candidates is measured again: at most 2.5 % of studies may be wrong in this direction."""
    options = SearchOptions(trials=16, rounds=3, patience=8)
    wrong = sum(
        run(begin(InMemoryStorage(), seed=1000 * seed), Synthetic(flat, seed=seed), options).beats_production
        for seed in range(150)
    )
    assert wrong <= 9, "above 9 of 150 has a probability under 0.8 % at 2.5 %"


def test_the_confirming_rounds_are_none_of_the_searchs() -> None:
    objective = Synthetic(hill)
    verdict = run(begin(InMemoryStorage()), objective)
    assert verdict.best is not None
    values, rounds = objective.measured[-1]
    assert dict(values) == verdict.best.values
    assert set(rounds).isdisjoint(range(OPTIONS.rounds))
    assert len(rounds) >= 6


def test_a_study_that_was_begun_otherwise_is_refused_with_what_differs() -> None:
    storage = InMemoryStorage()
    begin(storage)
    with pytest.raises(SettingsError, match=r"The study 's' was begun with other production: give another --study"):
        Study(storage, "s", SPACE, PRODUCTION | {"draft_stop": 0.2}, {"ground": "synthetic"}, sampler="tpe", seed=0)
    with pytest.raises(SettingsError, match="with other ground"):
        Study(storage, "s", SPACE, PRODUCTION, {"ground": "engine"}, sampler="tpe", seed=0)


@pytest.mark.parametrize(
    ("database", "expected"),
    [
        ("sqlite:///paceline.db", "sqlite:///paceline-tune.db"),
        ("sqlite:////var/lib/pace.line/store", "sqlite:////var/lib/pace.line/store-tune"),
        ("sqlite://", "sqlite://"),
        ("postgresql+psycopg://u:secret@host/db", "postgresql+psycopg://u:secret@host/db"),
    ],
)
def test_studies_have_a_database_of_their_own_beside_the_store(database: str, expected: str) -> None:
    assert default_storage(database) == expected


@pytest.mark.parametrize("url", ["nonsense", "nothing://x", "postgresql://u:secret@host/db"])
def test_a_storage_that_cannot_be_used_is_one_sentence_without_its_password(url: str) -> None:
    with pytest.raises(StoreUrlError, match=r"^tune\.storage is .*: give a URL such as") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


def test_a_storage_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"cannot be opened .*: correct tune\.storage, or give --storage"):
        open_storage(f"sqlite:///{tmp_path}/no/such/folder.db")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_storage_in_memory_is_refused(url: str) -> None:
    with pytest.raises(StoreUrlError, match="it is in memory, where nothing is kept between two connections"):
        open_storage(url)


def test_two_processes_may_make_the_tables_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one's row for the version is there already."""
    made: list[str] = []

    def opened(url: str, **named: Any) -> RDBStorage:
        found = RDBStorage(url, **named)
        made.append(url)
        if len(made) == 1:
            raise IntegrityError("insert", {}, Exception("UNIQUE constraint failed: alembic_version.version_num"))
        return found

    monkeypatch.setattr("tuner.tune.storage.RDBStorage", opened)
    url = f"sqlite:///{tmp_path}/s.db"
    assert begin(open_storage(url)).trials == ()
    assert made == [url, url]


def test_a_candidate_that_another_process_is_just_proposing_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    study, other = begin(open_storage(url)), optuna.load_study(study_name="s", storage=url)
    asked = other.ask()
    first = study.propose()
    study.tell(first.number, 1.0)
    asked.suggest_float("draft_stop", 0.0, 0.5)
    other.tell(asked, 1.1)
    assert first.number != asked.number


def test_a_candidate_that_two_processes_measure_counts_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    one, another = begin(open_storage(url)), begin(open_storage(url))
    proposed = one.propose()
    assert another.propose() == proposed
    one.tell(proposed.number, 1.0)
    another.tell(proposed.number, 1.3)
    assert [trial.ratio for trial in one.trials] == [trial.ratio for trial in another.trials] == [1.0]


def test_a_study_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    study = begin(open_storage(f"sqlite:///{tmp_path}/s.db"))
    (tmp_path / "s.db").write_text("no database any more")
    calls: list[Callable[[], object]] = [study.propose, lambda: study.tell(0, 1.0), lambda: study.keep("x", 1)]
    calls += [lambda: study.kept("x"), lambda: study.trials, lambda: study.confirmed]
    for call in calls:
        with pytest.raises(StoreUnavailableError, match=r"^The study 's' cannot be read or written \(.*\): once"):
            call()
