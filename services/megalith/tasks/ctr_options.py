"""What `megalith train ctr` is told: which columns of which files, and which model."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from megalith.errors import InvalidSetting
from megalith.runtime.config.removed_settings import RemovedSettings
from megalith.runtime.config.setting_checks import check_above_0, check_choices, check_not_below_0
from megalith.runtime.config.settings import setting
from megalith.tasks.input.columns import DenseColumn, IdColumn, Label, TimeColumn
from megalith.tasks.input.examples import DataColumns
from megalith.tasks.input.kafka import TopicAddress, is_topic
from megalith.tasks.input.layouts import LAYOUTS, KnownLayout
from megalith.tasks.input.windows import Window, check_patterns
from megalith.tasks.models import MODELS

_TIME_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class CtrOptions:
    """Train a click model on columns of Parquet, CSV, TSV or TFRecord files, without any code."""

    SECTION: ClassVar = "The model and its data"

    data: str = setting(
        "Files to train on: paths with wildcards, several with commas between them. "
        "Each ends in .parquet, .csv, .tsv, .tfrecord or .examples. With {date} and {hour} in the "
        "path, those from --start to --end, in the order of time. Or a Kafka topic: "
        "kafka://host:port/topic."
    )
    label: str = setting("The column to predict, 0 or 1; or a comparison such as 'rating>=4'.", "")
    features: str = setting(
        "Columns of integers or text, with commas between them. Each value has a row.", ""
    )
    lists: str = setting(
        "Columns with a list in each row. history:item says that the values of history share the "
        "rows of item. Lists may also be text such as a|b|c.",
        "",
    )
    dense: str = setting(
        "Columns of numbers. price:log takes the logarithm, for numbers of many sizes.", ""
    )
    time: str = setting(
        "The column of times, by which rows expire: timestamps, dates, or integers since 1970. "
        "ts:ms says that integers are milliseconds.",
        "",
    )
    text: str = setting(
        "Columns of CSV and TSV that stay text although they look like numbers: 5 and '5' are "
        "different values.",
        "",
    )
    header: str = setting(
        "Names of the columns of CSV and TSV files that have no header line. Text that does not "
        "end in .csv is then read as TSV.",
        "",
    )
    layout: str = setting(
        "criteo: the columns of Criteo's click logs (header, label, features, dense and text), "
        "where they are not told otherwise.",
        "",
        choices=("", *LAYOUTS),
    )
    start: str = setting(
        "The first day or hour of files with {date} in their path: 2026-11-01 or 2026-11-01T05.", ""
    )
    end: str = setting("The last day or hour, which is trained too.", "")
    overwrite_end_date: str = setting(
        "Takes the place of --end if there is one, for example of the one in a job's TOML file.", ""
    )
    follow: str = setting(
        "Whether to wait for new files or messages when all are read. no: the job ends. yes: it "
        "waits for ever. 600: it ends when none has come for 600 s. auto: yes for a Kafka topic, "
        "otherwise no.",
        "auto",
    )
    on_lost_data: str = setting(
        "What becomes of messages of a topic that are gone or cannot be read, and of files of "
        "--follow that are gone before they are read. stop: the job ends. skip: they are passed "
        "over and counted.",
        "stop",
        choices=("stop", "skip"),
    )
    kafka_timeout_s: float = setting("Seconds that the brokers of a topic may be away.", 60.0)
    eval_data: str = setting(
        "Files to evaluate the trained model on. They should not be among those of --data.", ""
    )
    group_by: str = setting(
        "Columns: the evaluation gives the AUC of each of their values.",
        "",
        replaces=RemovedSettings(("slice_by",), lambda said: said.get("slice_by", "")),
    )

    model: str = setting("lr (logistic regression), fm, deepfm or dcn.", "deepfm")
    dim: int = setting("Numbers in the vector of each value; lr has none.", 8)
    hidden: str = setting("Widths of the hidden layers of deepfm and dcn.", "256,128")
    row_rate: float = setting("Learning rate of rows, which Adagrad trains.", 0.05)
    warmup_steps: int = setting(
        "Steps of the job in which the learning rate of rows grows from 0 to --row-rate. "
        "-1 = one for each pair of --features and --lists; lr, which has no pairs, has none.",
        -1,
    )
    rate: float = setting("Learning rate of layers, which Adam trains.", 0.001)

    clip_norm: float = setting(
        "The largest norm of the gradients of all layers together: larger ones are scaled down to "
        "it. 0 = they are not clipped. Gradients of rows never are.",
        0.0,
    )
    threads: int = setting(
        "Threads that compute a batch in each worker; each takes a part of its examples. 0 = the "
        "cores of this machine, divided by the number of workers.",
        0,
    )

    epochs: int = setting("How often the data is trained; --num-examples goes before it.", 1)
    shuffle: str = setting(
        "yes: the rows of each row group are trained in random order. no: in the order of the "
        "file. auto: no if there is a --time, otherwise yes.",
        "auto",
        choices=("auto", "yes", "no"),
    )
    expire_days: int = setting(
        "Days of --time without an update after which a row is dropped; 0 = never.", 0
    )
    min_count: int = setting(
        "In how many batches a value must be to get a row: with 3, the third one makes it.", 1
    )
    list_separator: str = setting("What separates the values of a list that is text.", "|")

    def __post_init__(self) -> None:
        check_choices(self)
        if self.layout:
            self._fill(LAYOUTS[self.layout])
        if not self.data:
            raise InvalidSetting("--data: which files hold the examples?")
        if not self.label:
            raise InvalidSetting("--label: which column is to be predicted?")
        if not self.features and not self.lists:
            raise InvalidSetting("--features: which columns have rows?")

        if self.model not in MODELS:
            known = ", ".join(MODELS)
            raise InvalidSetting(f"--model={self.model}: there are {known}")

        check_above_0(self, "dim", "row_rate", "rate", "epochs", "min_count")
        check_above_0(self, "kafka_timeout_s")
        check_not_below_0(self, "expire_days", "threads", "clip_norm")
        if self.warmup_steps < -1:
            raise InvalidSetting(f"--warmup-steps={self.warmup_steps}: expected -1 or more")

        self.columns()
        self.hidden_widths()
        if not self.is_topic:
            check_patterns(names(self.data), self.window())
        if self.is_followed and self.epochs != 1:
            raise InvalidSetting(f"--epochs={self.epochs}: data that is followed is read once")

    def _fill(self, layout: KnownLayout) -> None:
        """Take from the layout what is not told."""
        for field in dataclasses.fields(layout):
            is_told = getattr(self, field.name)
            if not is_told:
                value = getattr(layout, field.name)
                object.__setattr__(self, field.name, value)

    def columns(self) -> DataColumns:
        """What is read for training."""
        ids = [IdColumn(name, name) for name in names(self.features)]
        known = {column.column for column in ids}

        for name in names(self.lists):
            column, _, table = name.partition(":")
            if table and table not in known:
                raise InvalidSetting(f"--lists={name}: {table} is not in --features")

            ids.append(IdColumn(column, table or column, True, self.list_separator))

        inputs = [column.column for column in ids]
        repeated = {name for name in inputs if inputs.count(name) > 1}
        if repeated:
            listed = ", ".join(sorted(repeated))
            raise InvalidSetting(f"--features and --lists name {listed} twice")

        label = Label.parse(self.label)
        dense = tuple(_dense(name) for name in names(self.dense))
        inputs += [column.column for column in dense]
        if label.column in inputs:
            raise InvalidSetting(
                f"--label={self.label}: {label.column} is a feature too, which tells the model the "
                "answer; leave it out of --features, --lists and --dense"
            )

        return DataColumns(
            label=label,
            ids=tuple(ids),
            dense=dense,
            time=_time(self.time),
        )

    def window(self) -> Window:
        """From when to when files are read."""
        end = self.end
        if end and self.overwrite_end_date:
            end = self.overwrite_end_date

        return Window.parse(self.start, end)

    def hidden_widths(self) -> tuple[int, ...]:
        try:
            widths = tuple(int(width) for width in names(self.hidden))
        except ValueError:
            raise InvalidSetting(f"--hidden={self.hidden}: expected widths such as 64,32") from None

        if not widths or min(widths) < 1:
            raise InvalidSetting(f"--hidden={self.hidden}: a layer has one unit or more")

        return widths

    def row_warmup_steps(self) -> int:
        """The steps in which the learning rate of rows grows.

        At the start the rows of all features move together, and a product of two of them moves
        with the square of that. A push that is late then goes too far, and the next ones too far
        back. So the more pairs there are, the more slowly the rate grows.
        """
        if self.warmup_steps >= 0:
            return self.warmup_steps
        if self.model == "lr":
            return 0

        num_features = len(self.columns().ids)
        return num_features * (num_features - 1) // 2

    @property
    def is_topic(self) -> bool:
        """Whether the data is a Kafka topic, which needs a valid address."""
        if not is_topic(self.data):
            return False

        TopicAddress.parse(self.data)
        return True

    @property
    def is_followed(self) -> bool:
        """Whether the input waits for new data, or is a topic."""
        return self.is_topic or self.idle_s() is not None

    def idle_s(self) -> float | None:
        """How long the input waits for new data; 0 = for ever, None = not at all."""
        if self.follow == "auto":
            return 0.0 if self.is_topic else None
        if self.follow in ("no", "yes"):
            return None if self.follow == "no" else 0.0

        try:
            seconds = float(self.follow)
        except ValueError:
            seconds = 0.0
        if seconds <= 0.0:
            raise InvalidSetting(f"--follow={self.follow}: expected no, yes or seconds such as 600")

        return seconds

    @property
    def is_shuffled(self) -> bool:
        if self.shuffle == "auto":
            return not self.time

        return self.shuffle == "yes"


def names(text: str) -> list[str]:
    """A list with commas; blanks around a name do not count."""
    stripped = [name.strip() for name in text.split(",")]
    return [name for name in stripped if name]


def _dense(text: str) -> DenseColumn:
    column, _, change = text.partition(":")
    if change not in ("", "log"):
        raise InvalidSetting(f"--dense={text}: the only change of numbers is {column}:log")

    return DenseColumn(column, change == "log")


def _time(text: str) -> TimeColumn | None:
    if not text:
        return None

    column, _, unit = text.partition(":")
    if unit and unit not in _TIME_UNITS:
        raise InvalidSetting(f"--time={text}: a unit is one of {', '.join(_TIME_UNITS)}")

    return TimeColumn(column, unit or "s")


def options_of(values: dict[str, Any]) -> CtrOptions:
    """The options of these values by name; InvalidSetting names one that there is not.

    The settings of a model that was trained when `group_by` was called `slice_by` are read, too.
    """
    from megalith.runtime.config import settings

    named = dict(values)
    if "slice_by" in named:
        old = named.pop("slice_by")
        named.setdefault("group_by", old)

    return settings.load(CtrOptions, "MEGALITH_CTR_", code=named, environ={})
