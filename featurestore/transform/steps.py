"""Chains of steps, which ``|`` composes, and the forms of values between steps.

A step only holds data: the name of its rule, the options and, after fitting, the fitted values. The
rules implement the behavior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from featurestore.errors import InvalidArgument, UnsupportedType
from featurestore.model.json_object import JsonMapping
from featurestore.model.records import OMIT_DEFAULT, Record

if TYPE_CHECKING:
    import pyarrow as pa

ValueType = Literal["number", "whole", "text", "binary", "code", "vector", "list", "other"]
DTYPES = ("float32", "float64", "int32", "int64")


@dataclass(frozen=True)
class Step(Record, keys=("rule", "options", "fitted")):
    """A rule name with options and fitted values.

    ``function`` and ``fit`` are the Python functions of the rule "function". Files contain only the
    hash of their source.
    """

    rule: str
    options: JsonMapping = field(default_factory=dict)
    fitted: Annotated[JsonMapping | None, OMIT_DEFAULT] = None
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    fit: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def with_fitted(self, values: JsonMapping) -> Step:
        """Return the step with fitted values."""
        return replace(self, fitted=values)

    def __str__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.options.items() if value is not None]
        return f"{self.rule}({', '.join(options)})"


@dataclass(frozen=True)
class Chain:
    """The steps that transform a column, in order.

    >>> from featurestore import transform as t
    >>> t.log1p() | t.standardize()
    log1p() | standardize()
    """

    steps: tuple[Step, ...]

    def __or__(self, chain: Chain) -> Chain:
        if not isinstance(chain, Chain):
            raise InvalidArgument(
                f"{chain!r} is not a transformation.", hint="t.log1p() | t.standardize()"
            )
        return Chain((*self.steps, *chain.steps))

    def __repr__(self) -> str:
        return " | ".join(map(str, self.steps))


def single_step(rule: str, **options: Any) -> Chain:
    """Return a chain with a single step."""
    return Chain((Step(rule, options),))


@dataclass(frozen=True)
class Form(Record, keys=("dtype", "shape", "size")):
    """The form of a column between two steps of a chain; its JSON is that of an output form.

    Attributes:
        value_type: "number" (float64, missing is NaN), "whole" (int64), "text", "binary", "code"
            (integers from 0, 0 is missing), "vector" (several numbers computed from one value,
            which steps on numbers do not accept), "list" (of variable length), "other" (accepted
            only by functions).
        shape: The shape of one value.
        dtype: The numpy type if the chain ends here, "" if it cannot end here.
        size: The number of codes.
        item: The kind of the items of lists.
    """

    value_type: ValueType
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    size: Annotated[int | None, OMIT_DEFAULT] = None
    item: ValueType | None = None

    def of_items(self) -> Form:
        """Return the form of the items of lists and arrays, of which a sample consists."""
        return replace(self, shape=())

    def __str__(self) -> str:
        shape = ""
        if self.shape:
            shape = f" {list(self.shape)}"
        codes = ""
        if self.size is not None:
            codes = f", {self.size} codes"
        return f"{self.dtype}{shape}{codes}"


def code_form(input_form: Form, size: int) -> Form:
    """Return the form of codes below ``size`` that have the shape of the input."""
    return Form("code", input_form.shape, "int32", size)


def form_of(dtype: pa.DataType) -> Form:
    """Return the form of a stored column of this feature type.

    >>> import pyarrow as pa
    >>> form_of(pa.list_(pa.string())).item
    'text'
    """
    import pyarrow.types as pat

    if pat.is_list(dtype) or pat.is_large_list(dtype):
        item = form_of(dtype.value_type)
        if item.value_type in ("number", "whole", "text") and not item.shape:
            return Form("list", (), "", item=item.value_type)
        return Form("other", (), "")
    shape: tuple[int, ...] = ()
    while pat.is_fixed_size_list(dtype):
        shape += (dtype.list_size,)
        dtype = dtype.value_type
    # int64 cannot represent all values of uint64, so they are numbers.
    if pat.is_floating(dtype) or pat.is_uint64(dtype):
        return Form("number", shape, "float32")
    if (
        pat.is_boolean(dtype)
        or pat.is_integer(dtype)
        or pat.is_date(dtype)
        or pat.is_timestamp(dtype)
    ):
        return Form("whole", shape, "int64")
    if pat.is_string(dtype) or pat.is_large_string(dtype):
        return Form("text", shape, "")
    if pat.is_binary(dtype) or pat.is_large_binary(dtype):
        return Form("binary", shape, "")
    return Form("other", shape, "")


def arrow_type(form: Form) -> pa.DataType:
    """Return the feature type of an output form.

    >>> arrow_type(Form("vector", (2,)))
    FixedSizeListType(fixed_size_list<item: float>[2])
    """
    import pyarrow as pa

    from featurestore.arrow.types import shaped_type

    names = {
        "float32": pa.float32(),
        "float64": pa.float64(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "uint8": pa.uint8(),
        "uint16": pa.uint16(),
        "bool": pa.bool_(),
    }
    if form.dtype not in names:
        raise UnsupportedType(f"A chain cannot end with {form.value_type} values.")
    return shaped_type(names[form.dtype], form.shape)
