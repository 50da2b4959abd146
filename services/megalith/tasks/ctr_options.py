"""What `megalith train ctr` is told: which columns of which files, and which model."""

from dataclasses import dataclass
from typing import Any, ClassVar

from megalith.errors import InvalidSetting
from megalith.runtime.setting_checks import check_above_0, check_choices, check_not_below_0
from megalith.runtime.settings import setting
from megalith.tasks.input.columns import DenseColumn, IdColumn, Label, TimeColumn
from megalith.tasks.input.examples import DataColumns
from megalith.tasks.models import MODELS

_TIME_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class CtrOptions:
    """Train a click model on columns of Parquet, CSV or TSV files, without any code."""

    SECTION: ClassVar = "The model and its data"

    data: str = setting(
        "Files to train on: paths with wildcards, several with commas between them. "
        "Each ends in .parquet, .csv or .tsv."
    )
    label: str = setting("The column to predict, 0 or 1; or a comparison such as 'rating>=4'.")
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
    eval_data: str = setting(
        "Files to evaluate the trained model on. They should not be among those of --data.", ""
    )
    slice_by: str = setting("Columns: the evaluation gives the AUC of each of their values.", "")

    model: str = setting("lr (logistic regression), fm, deepfm or dcn.", "deepfm")
    dim: int = setting("Numbers in the vector of each value; lr has none.", 8)
    hidden: str = setting("Widths of the hidden layers of deepfm and dcn.", "64,32")
    row_rate: float = setting("Learning rate of rows, which Adagrad trains.", 0.05)
    rate: float = setting("Learning rate of layers, which Adam trains.", 0.003)

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
    min_count: int = setting("How often a value must occur before it gets a row.", 1)
    list_separator: str = setting("What separates the values of a list that is text.", "|")

    def __post_init__(self) -> None:
        if not self.data:
            raise InvalidSetting("--data: which files hold the examples?")
        if not self.label:
            raise InvalidSetting("--label: which column is to be predicted?")
        if not self.features and not self.lists:
            raise InvalidSetting("--features: which columns have rows?")

        if self.model not in MODELS:
            raise InvalidSetting(f"--model={self.model}: there are {', '.join(MODELS)}")

        check_choices(self)
        check_above_0(self, "dim", "row_rate", "rate", "epochs", "min_count")
        check_not_below_0(self, "expire_days")
        self.columns()
        self.hidden_widths()

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

    def hidden_widths(self) -> tuple[int, ...]:
        try:
            widths = tuple(int(width) for width in names(self.hidden))
        except ValueError:
            raise InvalidSetting(f"--hidden={self.hidden}: expected widths such as 64,32") from None

        if not widths or min(widths) < 1:
            raise InvalidSetting(f"--hidden={self.hidden}: a layer has one unit or more")

        return widths

    @property
    def is_shuffled(self) -> bool:
        return self.shuffle == "yes" or (self.shuffle == "auto" and not self.time)


def names(text: str) -> list[str]:
    """A list with commas; blanks around a name do not count."""
    return [name.strip() for name in text.split(",") if name.strip()]


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
    """The options of these values by name; InvalidSetting names one that there is not."""
    from megalith.runtime import settings

    return settings.load(CtrOptions, "MEGALITH_CTR_", code=values, environ={})
