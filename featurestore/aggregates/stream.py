"""Window features over one sorted stream of rows and labels.

An engine puts the rows of a group and the labels into one stream, sorted by a hash of their keys
and by time, and this module turns it into labels with their features: it takes whole keys at a time,
or parts of one that is too large. Engines may use any hash, since only keys that are equal meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from featurestore.aggregates.arrays import Integers
from featurestore.aggregates.carried import CutGroup
from featurestore.aggregates.chunk import Aggregate
from featurestore.aggregates.column_codes import codes_of, flags_of, integers_of
from featurestore.aggregates.events import Question, is_sorted
from featurestore.aggregates.parts import GROUP, MOMENT, Part, differs, parts_of
from featurestore.aggregates.ranges import Labels


@dataclass(frozen=True)
class WindowFeatures:
    """Computes window features from a sorted stream; runs where the rows are.

    The stream's columns are ``GROUP``, ``MOMENT``, ``KNOWN`` and ``TIE`` where they are needed,
    then ``k0, k1, ...`` (keys), ``m0, ...`` (what else tells events of one moment apart),
    ``v0, ...`` (values), ``w0, ...`` (conditions), and ``c0, ...`` (the label's columns).

    Attributes:
        schema: Of the result: the label's columns, then one for each aggregate.
        keys: How many key columns there are; 0 where ``GROUP`` is the key itself.
        members: How many columns ``m`` there are; a row with another one's keys, members and event
            time is a version of the same event.
        waits: Whether a row counts only from the time ``KNOWN`` on.
        refuses_ties: Whether two rows of one key and event time are an error: nothing tells whether
            they are two events.
        aggregates: What is asked for; ``values`` and ``condition`` number the columns.
        fills: What stands for null in each result.
        conditions: How many conditions there are.
        group: The group's name, for messages.
    """

    schema: pa.Schema
    keys: int
    members: int
    waits: bool
    refuses_ties: bool
    aggregates: tuple[Aggregate, ...]
    fills: tuple[object, ...]
    conditions: int
    group: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the labels with their features, key by key."""
        cut = self._cut_group()
        for part in parts_of(batches):
            if part.begins:
                cut = self._cut_group()
            yield from self._answered(part, cut).to_batches()

    def in_threads(
        self, batches: Iterator[pa.RecordBatch], *, threads: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same; whole groups are computed beside each other, on so many threads."""
        if threads <= 1:
            yield from self(batches)
            return
        waiting: deque[Future[pa.Table]] = deque()
        cut = self._cut_group()
        with ThreadPoolExecutor(threads) as pool:
            for part in parts_of(batches):
                # A part of a cut group needs what is carried of those before it.
                while waiting and (len(waiting) == threads or not part.is_whole):
                    yield from waiting.popleft().result().to_batches()
                if part.begins:
                    cut = self._cut_group()
                if part.is_whole:
                    waiting.append(pool.submit(self._answered, part, cut))
                else:
                    yield from self._answered(part, cut).to_batches()
            while waiting:
                yield from waiting.popleft().result().to_batches()

    @property
    def _question(self) -> Question:
        return Question(
            members=self.members,
            waits=self.waits,
            refuses_ties=self.refuses_ties,
            aggregates=self.aggregates,
            conditions=self.conditions,
            group=self.group,
        )

    @property
    def _keys(self) -> list[str]:
        return [f"k{number}" for number in range(self.keys)] or [GROUP]

    def _cut_group(self) -> CutGroup:
        return CutGroup(self._question, self._keys)

    def _answered(self, part: Part, cut: CutGroup) -> pa.Table:
        """Return the labels of a part with their answers; ``cut`` is its group where it is cut."""
        chunk = part.rows
        has_time = flags_of(chunk.column(MOMENT).is_valid())
        moment = integers_of(chunk.column(MOMENT))
        is_label = ~has_time | (moment & 1 == 1)
        carried = len(self.schema) - len(self.aggregates)
        labels = chunk.select([f"c{number}" for number in range(carried)])
        labels = labels.filter(pa.array(is_label))
        key, keys = self._key_numbers(chunk)
        answerable = is_label & (key >= 0) & has_time
        rows = np.flatnonzero(~is_label)
        asked = np.flatnonzero(answerable)
        if not is_sorted(key[asked], moment[asked]):
            asked = asked[np.lexsort((moment[asked], key[asked]))]
        if part.is_whole:
            found = self._aggregated(chunk, key, moment >> 1, rows, asked, keys)
        else:
            found = cut.answers(chunk, key, moment >> 1, rows, asked)
        # Labels without key or time see no row: their answer is the last one.
        place = np.full(chunk.num_rows, len(asked), np.int64)
        place[asked] = np.arange(len(asked))
        wanted = place[is_label]
        is_in_order = np.array_equal(wanted, np.arange(len(asked)))
        columns = list(labels.columns)
        for answers, fill in zip(found, self.fills, strict=True):
            if fill is not None:
                answers = answers.fill_null(pa.scalar(fill, answers.type))
            if is_in_order:
                columns.append(answers[: len(asked)])
            else:
                columns.append(answers.take(pa.array(wanted)))
        return pa.table(columns, names=self.schema.names).cast(self.schema)

    def _aggregated(
        self,
        chunk: pa.Table,
        key: Integers,
        time: Integers,
        rows: Integers,
        asked: Integers,
        keys: int,
    ) -> list[pa.Array]:
        """Return the answers for the labels asked, and then the one of a label that sees no row."""
        question = self._question
        events = question.events(chunk, key, time, rows)
        # One more key without rows, for the label that sees none.
        labels = Labels(np.append(key[asked], keys), np.append(time[asked], 0))
        return question.answers(events, labels, keys=keys + 1, aggregates=self.aggregates)

    def _key_numbers(self, chunk: pa.Table) -> tuple[Integers, int]:
        """Return a number for each row's key, -1 where a part of it is null, and how many."""
        columns = [chunk.column(name).combine_chunks() for name in self._keys]
        present = np.ones(chunk.num_rows, bool)
        for column in columns:
            if column.null_count:
                present &= flags_of(column.is_valid())
        changes = differs(chunk.column(GROUP).combine_chunks())
        # Where the hash goes on, the key nearly always does, too; or it is the key.
        if self.keys == 0 or not any((differs(column) & ~changes).any() for column in columns):
            number = np.cumsum(changes) - 1
        else:
            number = codes_of(columns, chunk.num_rows)
        keys = int(number.max(initial=-1)) + 1
        return np.where(present, number, -1), keys
