"""The export of a training dataset; ``pipeline`` has the order of its steps.

``request`` is what was asked, checked. ``hashed_rows`` gives every row its hash and its group,
``profiles`` and ``boundaries`` count them, ``shard_plan`` decides how many shards there are and
where each begins, ``assignment`` sends every row to its shard, ``shard_writer`` writes one shard
where its rows are, ``manifest`` says what was written. ``audit`` and ``split_statistics`` look at
the rows in between.
"""
