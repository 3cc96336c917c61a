"""The export of a training dataset; ``pipeline`` has the order of its steps.

``request`` is the checked request. ``hashed_rows`` adds the hash and the group to each row,
``profiles`` and ``boundaries`` count them, ``shard_plan`` decides the number of shards and their
boundaries, ``assignment`` maps each row to its shard, ``shard_writer`` writes one shard inside the
engine, ``manifest`` describes the written files. ``audit`` and ``split_statistics`` check and count
the rows before and during the write.
"""
