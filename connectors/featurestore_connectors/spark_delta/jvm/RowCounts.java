package featurestore.hashing;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.types.StructType;

/** Counts hashed rows where they are: by group and leading bits of the hash, and what layouts ask of columns. */
public final class RowCounts {
  private static final int MANY_PARTS = 4096;

  private RowCounts() {}

  /**
   * Returns the counts as a JSON object: of each group the sum of its hashes and the rows of all bins, of each column
   * its values, extremes and lengths.
   */
  public static String count(Dataset<Row> rows, String hash, String group, List<String> columns, int bits) {
    Counting counting = new Counting(rows.schema(), hash, group, columns, bits);
    JavaRDD<InternalRow> parts = rows.queryExecution().toRdd().toJavaRDD();
    // The driver gets as many states as the root of the parts: with a depth of 3 the cube root, by one more stage.
    int depth = parts.getNumPartitions() > MANY_PARTS ? 3 : 2;
    return parts.mapPartitions(counting).treeAggregate(
        new State(columns.size()), State::merged, State::merged, depth).toJson();
  }

  private static final class Counting implements FlatMapFunction<Iterator<InternalRow>, State> {
    private static final long serialVersionUID = 1L;
    private final ColumnReader hash;
    private final ColumnReader group;
    private final ColumnReader[] columns;
    private final int bits;

    private Counting(StructType schema, String hash, String group, List<String> columns, int bits) {
      this.hash = ColumnReader.of(schema, hash);
      this.group = ColumnReader.of(schema, group);
      this.columns = new ColumnReader[columns.size()];
      for (int index = 0; index < this.columns.length; index++) {
        this.columns[index] = ColumnReader.of(schema, columns.get(index));
      }
      this.bits = bits;
    }

    @Override
    public Iterator<State> call(Iterator<InternalRow> rows) {
      State state = new State(columns.length);
      while (rows.hasNext()) {
        InternalRow row = rows.next();
        state.rows++;
        state.group(group.integer(row), bits).add(hash.integer(row) ^ Long.MIN_VALUE, bits);
        for (int index = 0; index < columns.length; index++) {
          if (!columns[index].isNull(row)) {
            state.columns[index].add(columns[index], row);
          }
        }
      }
      return List.of(state).iterator();
    }
  }

  private static final class State implements Serializable {
    private static final long serialVersionUID = 1L;
    private final TreeMap<Long, Group> groups = new TreeMap<>();
    private final Column[] columns;
    private long rows;
    private transient Group last;
    private transient long lastNumber;

    private State(int width) {
      columns = new Column[width];
      for (int index = 0; index < width; index++) {
        columns[index] = new Column();
      }
    }

    private Group group(long number, int bits) {
      if (last == null || number != lastNumber) {
        last = groups.computeIfAbsent(number, any -> new Group(bits));
        lastNumber = number;
      }
      return last;
    }

    private static State merged(State left, State right) {
      left.rows += right.rows;
      for (Map.Entry<Long, Group> each : right.groups.entrySet()) {
        left.groups.merge(each.getKey(), each.getValue(), Group::merged);
      }
      for (int index = 0; index < left.columns.length; index++) {
        left.columns[index].merge(right.columns[index]);
      }
      return left;
    }

    private String toJson() {
      ObjectNode found = new ObjectMapper().createObjectNode();
      found.put("rows", rows);
      ObjectNode ofGroups = found.putObject("groups");
      for (Map.Entry<Long, Group> each : groups.entrySet()) {
        ByteBuffer bins = ByteBuffer.allocate(each.getValue().bins.length * Long.BYTES);
        bins.asLongBuffer().put(each.getValue().bins);
        ObjectNode group = ofGroups.putObject(Long.toString(each.getKey()));
        group.put("sum", each.getValue().sum);
        group.put("bins", bins.array());
      }
      ArrayNode ofColumns = found.putArray("columns");
      for (Column column : columns) {
        column.describe(ofColumns.addObject());
      }
      return found.toString();
    }
  }

  private static final class Group implements Serializable {
    private static final long serialVersionUID = 1L;
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

  private static final class Column implements Serializable {
    private static final long serialVersionUID = 1L;
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

    private void describe(ObjectNode found) {
      found.put("values", values);
      if (minimum <= maximum) {
        found.put("minimum", minimum);
        found.put("maximum", maximum);
      }
      found.put("longest", longest);
      found.put("total", total);
    }
  }
}
