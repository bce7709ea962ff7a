"""What every test shares: fixed seeds, a clean environment, a header that tells versions, a short result file.

Nothing here imports torch: a test that needs no tensors starts without it.
"""

import datetime
import importlib.metadata
import os
import platform
import random
import shutil
import sys
from pathlib import Path

import pytest

SEED = 20251129
PACKAGES = ("torch", "transformers", "fastapi", "sqlalchemy", "prometheus_client", "hypothesis", "pytest")
KEPT_VARIABLES = ("PACELINE_CACHE", "PACELINE_VLLM_ENV")
"""Where the default model and vLLM lie: facts of a machine, no settings of the service under test."""
HINTS = {"prometheus": "Debian and Ubuntu: apt-get install prometheus"}
OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--summary-file", type=Path, default=None, help="write the result of the run, with its machine, to this file"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "binary(name): needs a program on PATH; skipped, with the reason, without it")
    for name in [name for name in os.environ if name.startswith("PACELINE_") and name not in KEPT_VARIABLES]:
        del os.environ[name]


def pytest_report_header() -> list[str]:
    return [describe_versions(), describe_machine()]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("binary"):
        name = mark.args[0]
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not on PATH ({HINTS.get(name, 'install it to run this test')})")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    target: Path | None = config.getoption("--summary-file")
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(summarise(terminalreporter), encoding="utf-8")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The folder of the default model, fetched when the local cache does not hold it; without a network, a skip."""
    from engine.model_config import ModelError
    from engine.model_fetch import fetch_default_model
    from tests.default_gguf import download_and_keep

    try:
        return fetch_default_model(lambda stage, done, total: None, download_and_keep)
    except ModelError as error:
        pytest.skip(f"the default model is not here and cannot be fetched: {error}")


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Every test starts from the same random state. Code under test takes its seeds as arguments."""
    random.seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(SEED)


def describe_versions() -> str:
    """One line: Python and the packages that results depend on."""
    versions = {found.name.lower().replace("-", "_"): found.version for found in importlib.metadata.distributions()}
    found = [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
    return ", ".join([f"Python {platform.python_version()}", *found])


def describe_machine() -> str:
    """One line: processor, cores, memory, system. No path and no name of the machine."""
    processor = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = models[0] if models else processor
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{processor}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()}"


def summarise(reporter: pytest.TerminalReporter) -> str:
    """The result file: date, machine, versions, counts, then each failed test and each reason for a skip."""
    now = datetime.datetime.now(datetime.UTC)
    counts = [f"{len(reporter.stats[outcome])} {outcome}" for outcome in OUTCOMES if reporter.stats.get(outcome)]
    lines = [
        f"date      {now:%Y-%m-%d %H:%M} UTC",
        f"machine   {describe_machine()}",
        f"versions  {describe_versions()}",
        f"result    {', '.join(counts) or 'no test ran'}",
    ]
    for outcome in ("failed", "error"):
        lines += [f"{outcome:9} {report.nodeid}" for report in reporter.stats.get(outcome, [])]
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "no reason given"
        lines.append(f"skipped   {report.nodeid}: {reason.removeprefix('Skipped: ')}")
    return "\n".join(lines) + "\n"
