package featurestore.tfrecord;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import featurestore.hashing.CanonicalOrder;
import featurestore.hashing.ColumnReader;
import java.io.IOException;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;

/**
 * Writes the sorted rows of a partition as shards of records, without sending them to Python.
 *
 * <p>A partition is sorted by hash, and its shards follow each other. Rows of one hash are written in the order of
 * their canonical bytes. The report of a shard is that of the store's writer in Python.
 */
final class RecordShards implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final int BLOCK_BYTES = 1 << 20;
  // One label, whatever its bits.
  private static final long NAN = Double.doubleToRawLongBits(Double.NaN);

  private final String directory;
  private final String indexSuffix;
  private final String[] paths;
  private final long[] rows;
  private final ColumnReader shard;
  private final ColumnReader hash;
  private final String[] names;
  private final ColumnReader[] columns;
  private final boolean[] isLabel;
  private final int mostLabels;
  private final CanonicalOrder order;
  private final RecordEncoder encoder;

  RecordShards(String taskJson, StructType schema) throws IOException {
    JsonNode task = new ObjectMapper().readTree(taskJson);
    directory = task.get("directory").asText();
    indexSuffix = task.get("index_suffix").asText();
    JsonNode shards = task.get("shards");
    paths = new String[shards.size()];
    rows = new long[paths.length];
    for (int index = 0; index < paths.length; index++) {
      paths[index] = shards.get(index).get(0).asText();
      rows[index] = shards.get(index).get(1).asLong();
    }
    shard = ColumnReader.of(schema, task.get("shard").asText());
    hash = ColumnReader.of(schema, task.get("hash").asText());
    JsonNode given = task.get("columns");
    names = new String[given.size()];
    columns = new ColumnReader[names.length];
    isLabel = new boolean[names.length];
    int[] kinds = new int[names.length];
    for (int index = 0; index < names.length; index++) {
      names[index] = given.get(index).get("name").asText();
      columns[index] = ColumnReader.of(schema, names[index]);
      isLabel[index] = given.get(index).get("label").asBoolean();
      kinds[index] = given.get(index).get("kind").asInt();
    }
    mostLabels = task.get("most_labels").asInt();
    order = new CanonicalOrder(columns, kinds);
    encoder = new RecordEncoder(task.get("records"), schema);
  }

  /** Returns a writer for the rows of one partition. */
  Output open() {
    return new Output();
  }

  /** The shards of one partition while they are written. */
  final class Output {
    private final ArrayList<String> reports = new ArrayList<>();
    private Shard shardOfRows;

    /** Adds the next row. */
    void add(InternalRow row) {
      int number = (int) shard.integer(row);
      if (shardOfRows != null && shardOfRows.number != number) {
        finishShard();
      }
      if (shardOfRows == null) {
        shardOfRows = new Shard(number);
      }
      shardOfRows.add(row);
    }

    private void finishShard() {
      Shard finished = shardOfRows;
      shardOfRows = null;
      reports.add(finished.finish());
    }

    /** Publishes the last shard; returns a JSON object for each shard that has rows. */
    ArrayList<String> finish() {
      if (shardOfRows != null) {
        finishShard();
      }
      return reports;
    }

    /** Removes the shard that is not finished. */
    void abandon() {
      if (shardOfRows != null) {
        shardOfRows.abandon();
        shardOfRows = null;
      }
    }
  }

  /** A shard while it is written. */
  private final class Shard {
    private final int number;
    private final ShardOutput output;
    private final RecordEncoder.Block block = new RecordEncoder.Block();
    private final List<InternalRow> waiting = new ArrayList<>();
    private final long[] nulls = new long[columns.length];
    private final List<Map<Object, long[]>> labels = new ArrayList<>();
    private final Offsets offsets = new Offsets();
    private long hashOfWaiting;
    private long written;
    private long sum;
    private Long first;
    private long last;

    private Shard(int number) {
      this.number = number;
      this.output = new ShardOutput(Path.of(directory, paths[number]));
      for (boolean each : isLabel) {
        labels.add(each ? new LinkedHashMap<>() : null);
      }
    }

    private void add(InternalRow row) {
      long value = hash.integer(row);
      if (!waiting.isEmpty() && value != hashOfWaiting) {
        flush();
      }
      hashOfWaiting = value;
      // Spark fills the same row again.
      waiting.add(row.copy());
    }

    private void flush() {
      List<InternalRow> rowsOfHash = waiting.size() > 1 ? order.sorted(waiting) : waiting;
      for (InternalRow row : rowsOfHash) {
        if (written < rows[number]) {
          count(row);
          encode(row);
        }
      }
      waiting.clear();
    }

    private void count(InternalRow row) {
      long value = hash.integer(row) ^ Long.MIN_VALUE;
      first = first == null ? Long.valueOf(value) : first;
      last = value;
      sum += value;
      for (int index = 0; index < columns.length; index++) {
        boolean absent = columns[index].isNull(row);
        if (absent) {
          nulls[index]++;
        }
        Map<Object, long[]> counts = labels.get(index);
        if (counts != null) {
          counts.computeIfAbsent(absent ? null : label(columns[index], row), any -> new long[1])[0]++;
          if (counts.size() > mostLabels) {
            labels.set(index, null);
          }
        }
      }
    }

    private Object label(ColumnReader column, InternalRow row) {
      if (column.isBytes()) {
        return new String(column.bytes(row), StandardCharsets.UTF_8);
      }
      if (!column.isFraction()) {
        return column.integer(row);
      }
      long bits = column.doubleBits(row);
      return Double.isNaN(Double.longBitsToDouble(bits)) ? NAN : bits;
    }

    private void encode(InternalRow row) {
      int before = block.size;
      encoder.append(row, block);
      written++;
      if (!encoder.isFixed()) {
        offsets.add(block.size - before);
      }
      if (block.size >= BLOCK_BYTES) {
        write();
      }
    }

    private void write() {
      output.write(block.bytes, block.size);
      block.size = 0;
    }

    private String finish() {
      try (output) {
        flush();
        write();
        ObjectNode found = new ObjectMapper().createObjectNode();
        found.put("shard", number);
        found.put("rows", written);
        output.publish(found.putObject("file"));
        if (!encoder.isFixed()) {
          writeIndex(found.putObject("index"));
        }
        describe(found);
        return found.toString();
      }
    }

    private void writeIndex(ObjectNode found) {
      try (ShardOutput index = new ShardOutput(Path.of(directory, paths[number] + indexSuffix))) {
        index.write(offsets.bytes, offsets.size);
        index.publish(found);
      }
    }

    private void describe(ObjectNode found) {
      found.put("hash_sum", Long.toUnsignedString(sum));
      found.put("first_hash", Long.toUnsignedString(first));
      found.put("last_hash", Long.toUnsignedString(last));
      ObjectNode ofNulls = found.putObject("nulls");
      ObjectNode ofLabels = found.putObject("labels");
      for (int index = 0; index < columns.length; index++) {
        if (nulls[index] > 0) {
          ofNulls.put(names[index], nulls[index]);
        }
        if (isLabel[index]) {
          describeLabel(ofLabels, index);
        }
      }
    }

    private void describeLabel(ObjectNode found, int index) {
      Map<Object, long[]> counts = labels.get(index);
      if (counts == null) {
        found.putNull(names[index]);
        return;
      }
      ArrayNode pairs = found.putArray(names[index]);
      for (Map.Entry<Object, long[]> each : counts.entrySet()) {
        ArrayNode pair = pairs.addArray();
        if (each.getKey() instanceof Long) {
          pair.add((Long) each.getKey());
        } else {
          pair.add((String) each.getKey());
        }
        pair.add(each.getValue()[0]);
      }
    }

    private void abandon() {
      output.close();
    }
  }

  /** Where records begin, and where the last one ends, as little-endian bytes. */
  private static final class Offsets {
    private byte[] bytes = new byte[1 << 16];
    private int size = Long.BYTES;
    private long end;

    private void add(int length) {
      end += length;
      if (size + Long.BYTES > bytes.length) {
        bytes = Arrays.copyOf(bytes, 2 * bytes.length);
      }
      for (int index = 0; index < Long.BYTES; index++) {
        bytes[size++] = (byte) (end >>> (8 * index));
      }
    }
  }
}
