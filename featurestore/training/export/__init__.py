"""The export of a training dataset, whose steps ``training.create`` calls in order.

``request`` checks the request and the rows. ``hashed_rows`` adds a hash and a group to each row.
``profiles`` and ``boundaries`` count rows, and ``shard_plan`` computes the number of shards and
their boundaries. ``assignment`` maps each row to its split and shard, and ``shards`` writes them
inside the engine. ``manifest`` describes the written files. ``split_statistics`` computes statistics
during or after the write.
"""
