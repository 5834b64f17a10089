"""The names that users import, errors among them: types see them, `dir` lists them, each is loaded when it is used."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.killing import python

import commitlake
from commitlake import errors
from commitlake.clients.renamed import renamed
from commitlake.errors import root_reason

ROOT = Path(__file__).parents[2]
LIB = ROOT / "lib"
CACHE = ROOT / ".mypy_cache" / "users"
EXAMPLE = """
import commitlake
from commitlake import LocalTransactionState, Message, MessageExt, TransactionListener, TransactionMQProducer


class Orders(TransactionListener):
    def execute_local_transaction(self, message: Message, arg: int) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return "COMMIT"  # mistake: not a state


with TransactionMQProducer("orders", Orders(), bootstrap_servers="localhost:9092") as producer:
    result = producer.send_message_in_transaction(Message("orders", b"a book", tags=5), 17)  # mistake: tags are a str
    print(result.recall_handel)  # mistake: misspelt

for message in commitlake.consume("commitlake.yaml", "orders", group="points"):
    message.retry(after="10s")
try:
    producer.send(Message("orders", b"a book"))
except commitlake.UncertainSendError as error:
    print(error.reason)


class Shop(commitlake.TransactionalProducer):
    def sell(self, book: str) -> commitlake.LocalTransactionState:
        try:
            return self.send_message_in_transaction(Message("orders", book)).local_transaction_state
        except commitlake.FailedSend:
            return commitlake.ROLLBACK


with Shop.from_conf({"kafka.bootstrap_servers": "kafka:9092"}, "orders", Orders(), send_msg_timeout="5s") as shop:
    shop.sell("a book")
    former: commitlake.DefaultMQProducer = shop
    shop.sel("a book")  # mistake: misspelt


class AsyncOrders:
    async def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, message: MessageExt) -> LocalTransactionState | None:
        return None


async def serve() -> None:
    async with commitlake.AsyncTransactionMQProducer("orders", AsyncOrders(), bootstrap_servers="kafka:9092") as sender:
        await sender.send_message_in_transaction(Message("orders", b"a book"))
"""


def test_strict_types_find_each_mistake_in_a_users_program_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EXAMPLE)
    # A package that is installed is read for its types, and not itself checked.
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nmypy_path = {LIB}\n[mypy-commitlake.*]\nignore_errors = True\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(CACHE), str(program)]
    told = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    expected = [at for at, line in enumerate(EXAMPLE.splitlines(), 1) if "# mistake" in line]
    assert [int(line.split(":")[1]) for line in told.splitlines() if ": error:" in line] == expected, told


def test_the_package_ships_its_types_and_every_other_file(tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    shipped = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert Path("commitlake/py.typed") in shipped
    assert shipped == {
        path.relative_to(LIB) for path in (LIB / "commitlake").rglob("*") if path.is_file() and path.suffix != ".pyc"
    }


def test_dir_lists_every_name_and_types_see_the_same_ones() -> None:
    imported = {
        alias.asname
        for node in ast.walk(ast.parse((LIB / "commitlake" / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } - {None}
    assert imported == set(commitlake.__all__) - {"__version__"}
    assert imported < set(dir(commitlake))


@pytest.mark.parametrize("name", commitlake.__all__)
def test_each_name_is_there(name: str) -> None:
    assert getattr(commitlake, name) is getattr(commitlake, name)


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Mesage'"):
        _ = commitlake.Mesage  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("use", "needless"),
    [
        ("commitlake", {"kafka", "numpy", "pyspark", "delta", "pandas", "pyarrow"}),
        ("commitlake.UncertainSendError", {"kafka", "numpy", "pyspark", "delta", "pandas", "pyarrow"}),
        ("commitlake.TransactionMQProducer", {"numpy", "pyspark", "delta", "pandas", "pyarrow"}),
        ("commitlake.consume", {"kafka", "pyspark", "delta"}),
        ("commitlake.read_topic", {"kafka"}),
    ],
)
def test_a_name_loads_only_what_it_needs(use: str, needless: set[str]) -> None:
    code = f"import commitlake, sys; {use}; print(*sys.modules)"
    assert needless & set(python("-c", code, check=True).stdout.split()) == set()


def test_kafka_python_warns_of_nothing() -> None:
    code = "import commitlake; commitlake.TransactionMQProducer; import commitlake.testing"
    found = python("-W", "error::DeprecationWarning", "-c", code)
    assert (found.returncode, found.stderr) == (0, "")


EXTRAS = {
    "consumer": {"deltalake", "duckdb", "pyarrow", "sqlglot"},
    "spark": {"pyspark", "delta", "pandas", "pyarrow"},
}
WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import commitlake
for name in sys.argv[2].split(","):
    try:
        getattr(commitlake, name)
        print(name)
    except commitlake.CommitLakeError as error:
        print(name, type(error).__name__, type(error.__cause__).__name__, error)
    except ModuleNotFoundError as error:
        print(name, "bare", error)
"""


def used_without(modules: set[str], names: list[str]) -> list[str]:
    """What becomes of names where modules are not installed."""
    return python("-c", WITHOUT, ",".join(modules), ",".join(names), check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("extras", "names"),
    [
        ("consumer", ["consume", "MessageBatch", "Consumer", "ReceivedMessage", "delayed"]),
        ("spark", ["Coordinator", "start", "read_table", "ledger", "audit"]),
        (
            "consumer,spark",
            ["read_topic", "receipts", "SparkReceipts", "sink", "delta_transaction", "DeltaTransaction"],
        ),
    ],
)
def test_a_name_without_its_packages_is_an_error_with_the_extra_that_brings_them_all(
    extras: str, names: list[str]
) -> None:
    optional = set().union(*EXTRAS.values())
    for name, line in zip(names, used_without(optional, names), strict=True):
        assert line.startswith(f"{name} SetupError ModuleNotFoundError commitlake.{name} needs the module "), line
        assert line.endswith(f"; install it with pip install '/path/to/clone[{extras}]'"), line
    brought = set().union(*(EXTRAS[extra] for extra in extras.split(",")))
    assert used_without(optional - brought, names) == names
    assert used_without(optional, ["Message", "TransactionMQProducer"]) == ["Message", "TransactionMQProducer"]


@pytest.mark.parametrize(
    ("lacks", "there"),
    [
        (EXTRAS["consumer"] | EXTRAS["spark"], []),
        ({"pyspark"}, ["consume"]),
        ({"duckdb"}, ["Coordinator"]),
        (set(), ["sink"]),
    ],
    ids=str,
)
def test_import_star_and_help_load_what_is_installed(lacks: set[str], there: list[str]) -> None:
    program = (
        f"{WITHOUT.partition('import commitlake')[0]}from commitlake import *\nprint(sorted(globals()))\n"
        "import commitlake, pydoc\nprint('TransactionMQProducer' in pydoc.render_doc(commitlake))\n"
    )
    named, is_helped = python("-c", program, ",".join(lacks), check=True).stdout.splitlines()
    assert is_helped == "True"
    optional = {"consume", "sink", "Coordinator"}
    assert {name for name in optional if repr(name) in named} >= set(there)
    assert "'TransactionMQProducer'" in named
    assert not (lacks >= EXTRAS["consumer"] | EXTRAS["spark"] and any(repr(name) in named for name in optional))


def test_a_module_that_is_missing_and_no_extra_is_an_error_of_its_own() -> None:
    assert used_without({"yaml"}, ["consume"]) == ["consume bare No module named 'yaml'"]


WITHIN = {"AnswerError", "CatalogAwayError", "GatewayRefusal", "RecordError", "UndecidedError"}
"""Those that no user of the package sees, but as their base."""

PYTHON_WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "./commitlake.zip/commitlake/tables/warehouse.py", line 13, in <module>
    from delta.tables import DeltaTable
ModuleNotFoundError: No module named 'delta'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:601)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no space left\n\tat java.io.FileOutputStream.write", "no space left"),
        (PYTHON_WORKER, "ModuleNotFoundError: No module named 'delta'"),
        (
            f"x.PythonException: {PYTHON_WORKER[PYTHON_WORKER.index('Trace') :]}",
            "ModuleNotFoundError: No module named 'delta'",
        ),
        ("", "ValueError"),
    ],
)
def test_the_reason_is_the_line_that_names_the_cause(text: str, reason: str) -> None:
    assert root_reason(ValueError(text)) == reason


def test_every_error_but_those_within_is_public_exported_and_documented() -> None:
    tree = {name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}
    public = tree - WITHIN
    assert sorted(public) == errors.__all__
    assert {name for name in public if getattr(commitlake, name, None) is not getattr(errors, name)} == set()
    section = (ROOT / "docs" / "reference" / "errors.md").read_text().split("\n## Of the package")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)`[^|]*\| [^|]+ \| ([^|]*)\|$", section, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(name for name in public if getattr(errors, name).__name__ == name)
    assert [name for name, advice in rows if not advice.strip()] == ["CommitLakeError"]


def test_the_name_of_an_error_ends_so_and_former_names_still_work() -> None:
    own = {each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, Exception)}
    assert [each for each in own if not each.__name__.endswith(("Error", "GatewayRefusal"))] == []
    assert issubclass(commitlake.FailedSend, commitlake.MQClientException)
    assert issubclass(commitlake.ArgumentError, ValueError)


def test_former_names_of_arguments_still_work_with_a_warning(tmp_path: Path) -> None:
    @renamed(most="max_attempts")
    def retry(max_attempts: int) -> int:
        return max_attempts

    former: Any = retry
    with pytest.warns(DeprecationWarning, match="the argument most is max_attempts now") as warned:
        assert former(most=3) == 3
    assert warned[0].filename == __file__
    with pytest.raises(commitlake.ArgumentError, match="most is the former name of max_attempts; give max_attempts al"):
        former(most=3, max_attempts=4)
    receipts: Any = commitlake.receipts
    conf = {"warehouse": str(tmp_path / "warehouse")}
    with pytest.warns(DeprecationWarning, match=r"write commitlake.receipts\(conf, topic, group=...\) now") as warned:
        made = receipts(None, conf, "points", "orders")
    kept = made._receipts.group, made._receipts.topic
    assert (kept, warned[0].filename) == (("points", "orders"), __file__)
    for wrong in (("points",), ("points", "orders", "more")):
        with pytest.raises(commitlake.ArgumentError, match=r"too much; write commitlake.receipts\(conf, topic"):
            receipts(conf, "orders", *wrong)
    with pytest.raises(commitlake.ArgumentError, match="group: '' is not allowed"):
        receipts(conf, "orders")


@pytest.mark.parametrize(
    "error",
    [
        *(getattr(errors, name)("the text") for name in errors.__all__ if name != "StreamError"),
        errors.StreamError("landing", "no room"),
        errors.RefusedSendError("the text", "BAD_TOPIC"),
        errors.AnswerError("the text", 404),
        errors.GatewayRefusal("the text", "UNSUPPORTED"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_whole_from_another_process(error: Exception) -> None:
    pickled = (pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1))
    for other in (copy.copy(error), *map(pickle.loads, pickled)):
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


def test_an_error_is_caught_loaded_and_derived_from_by_its_former_name() -> None:
    class Mine(commitlake.FailedSend):
        def __init__(self, order: int) -> None:
            super().__init__(f"order {order}")

    former = commitlake.UncertainSend("the text")
    with pytest.raises(commitlake.UncertainSendError):
        raise former
    assert isinstance(Mine(17), commitlake.FailedSendError)
    assert b"UncertainSendError" in pickle.dumps(former)
    before = b"ccommitlake.errors\nUncertainSend\n(S'the text'\ntR."  # pickled by a version with that name
    assert type(pickle.loads(before)) is commitlake.UncertainSendError


def test_every_error_has_the_one_root() -> None:
    for name in [*errors.__all__, *WITHIN]:
        assert issubclass(getattr(errors, name), commitlake.CommitLakeError)
    assert issubclass(commitlake.UncertainSendError, commitlake.ProducerError)


def test_no_other_file_has_an_error_that_a_user_of_the_package_sees() -> None:
    package = ROOT / "lib" / "commitlake"
    elsewhere = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
        and ast.unparse(node.bases[0]) != "BaseException"  # the end of a process, in `commitlake.testing`
    }
    assert elsewhere == {"errors.py", "tools"}
