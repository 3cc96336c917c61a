package featurestore.hashing;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.InternalRow;

/** Counts of hashed rows by group and leading bits of the hash, and what layouts require of columns. */
final class RowCounts {
  // The most bytes of a number of seven bits per byte.
  private static final int NUMBER_BYTES = 10;
  private static final int GROUP_FIELDS = 2;
  private static final int COLUMN_FIELDS = 5;

  private final TreeMap<Long, Group> groups = new TreeMap<>();
  private final Column[] columns;
  private final int bits;
  private long rows;
  private Group last;
  private long lastNumber;

  RowCounts(int bits, int width) {
    this.bits = bits;
    columns = new Column[width];
    for (int index = 0; index < width; index++) {
      columns[index] = new Column();
    }
  }

  /** Counts a row of hash, group and columns. */
  void add(InternalRow row, ColumnReader[] readers) {
    rows++;
    group(readers[1].integer(row)).add(readers[0].integer(row) ^ Long.MIN_VALUE, bits);
    for (int index = 0; index < columns.length; index++) {
      ColumnReader reader = readers[index + 2];
      if (!reader.isNull(row)) {
        columns[index].add(reader, row);
      }
    }
  }

  private Group group(long number) {
    if (last == null || number != lastNumber) {
      last = groups.computeIfAbsent(number, any -> new Group(bits));
      lastNumber = number;
    }
    return last;
  }

  /** Adds other counts to these, and returns these. */
  RowCounts merge(RowCounts other) {
    rows += other.rows;
    last = null;
    for (Map.Entry<Long, Group> each : other.groups.entrySet()) {
      groups.merge(each.getKey(), each.getValue(), Group::merged);
    }
    for (int index = 0; index < columns.length; index++) {
      columns[index].merge(other.columns[index]);
    }
    return this;
  }

  /**
   * Returns the counts as a JSON object: for each group the sum of its hashes and the rows of all bins, for each column
   * its values, extremes and lengths.
   */
  String toJson() {
    ObjectNode counts = new ObjectMapper().createObjectNode();
    counts.put("rows", rows);
    ObjectNode ofGroups = counts.putObject("groups");
    for (Map.Entry<Long, Group> each : groups.entrySet()) {
      ByteBuffer bins = ByteBuffer.allocate(each.getValue().bins.length * Long.BYTES);
      bins.asLongBuffer().put(each.getValue().bins);
      ObjectNode group = ofGroups.putObject(Long.toString(each.getKey()));
      group.put("sum", each.getValue().sum);
      group.put("bins", bins.array());
    }
    ArrayNode ofColumns = counts.putArray("columns");
    for (Column column : columns) {
      column.describe(ofColumns.addObject());
    }
    return counts.toString();
  }

  /** Returns the counts as bytes; small numbers of rows take one byte, since a shuffle moves many bins. */
  byte[] toBytes() {
    int size = (4 + COLUMN_FIELDS * columns.length) * Long.BYTES;
    size += groups.size() * (GROUP_FIELDS * Long.BYTES + (NUMBER_BYTES << bits));
    ByteBuffer data = ByteBuffer.allocate(size);
    data.putLong(bits).putLong(columns.length).putLong(rows).putLong(groups.size());
    for (Column column : columns) {
      column.write(data);
    }
    for (Map.Entry<Long, Group> each : groups.entrySet()) {
      data.putLong(each.getKey()).putLong(each.getValue().sum);
      for (long bin : each.getValue().bins) {
        putNumber(data, bin);
      }
    }
    byte[] written = new byte[data.position()];
    data.flip().get(written);
    return written;
  }

  static RowCounts fromBytes(byte[] bytes) {
    ByteBuffer data = ByteBuffer.wrap(bytes);
    RowCounts counts = new RowCounts((int) data.getLong(), (int) data.getLong());
    counts.rows = data.getLong();
    long groupCount = data.getLong();
    for (Column column : counts.columns) {
      column.read(data);
    }
    for (long index = 0; index < groupCount; index++) {
      Group group = new Group(counts.bits);
      counts.groups.put(data.getLong(), group);
      group.sum = data.getLong();
      for (int bin = 0; bin < group.bins.length; bin++) {
        group.bins[bin] = number(data);
      }
    }
    return counts;
  }

  private static void putNumber(ByteBuffer data, long number) {
    while (number > 0x7F) {
      data.put((byte) (number | 0x80));
      number >>>= 7;
    }
    data.put((byte) number);
  }

  private static long number(ByteBuffer data) {
    long number = 0;
    int shift = 0;
    byte next = data.get();
    while (next < 0) {
      number |= (next & 0x7FL) << shift;
      shift += 7;
      next = data.get();
    }
    return number | (long) next << shift;
  }

  private static final class Group {
    private final long[] bins;
    private long sum;

    private Group(int bits) {
      bins = new long[1 << bits];
    }

    private void add(long hash, int bits) {
      bins[(int) (hash >>> (Long.SIZE - bits))]++;
      sum += hash;
    }

    private static Group merged(Group left, Group right) {
      left.sum += right.sum;
      for (int index = 0; index < left.bins.length; index++) {
        left.bins[index] += right.bins[index];
      }
      return left;
    }
  }

  private static final class Column {
    private long values;
    private long minimum = Long.MAX_VALUE;
    private long maximum = Long.MIN_VALUE;
    private long longest;
    private long total;

    private void add(ColumnReader column, InternalRow row) {
      values++;
      if (column.isBytes()) {
        int length = column.length(row);
        longest = Math.max(longest, length);
        total += length;
      } else if (!column.isFraction() && !column.isOpaque()) {
        long value = column.integer(row);
        minimum = Math.min(minimum, value);
        maximum = Math.max(maximum, value);
      }
    }

    private void merge(Column other) {
      values += other.values;
      minimum = Math.min(minimum, other.minimum);
      maximum = Math.max(maximum, other.maximum);
      longest = Math.max(longest, other.longest);
      total += other.total;
    }

    private void write(ByteBuffer data) {
      data.putLong(values).putLong(minimum).putLong(maximum).putLong(longest).putLong(total);
    }

    private void read(ByteBuffer data) {
      values = data.getLong();
      minimum = data.getLong();
      maximum = data.getLong();
      longest = data.getLong();
      total = data.getLong();
    }

    private void describe(ObjectNode column) {
      column.put("values", values);
      if (minimum <= maximum) {
        column.put("minimum", minimum);
        column.put("maximum", maximum);
      }
      column.put("longest", longest);
      column.put("total", total);
    }
  }
}
