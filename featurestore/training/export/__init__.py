"""The export of a training dataset; ``training.create`` has the order of its steps.

``request`` is the checked request with the rows. ``hashed_rows`` adds the hash and the group to
each row, ``profiles`` and ``boundaries`` count them, ``shard_plan`` decides the number of shards and
their boundaries, ``assignment`` maps each row to its split and shard, ``shards`` writes them inside
the engine, ``manifest`` describes the written files. ``split_statistics`` counts the rows during or
after the write.
"""
