package featurestore.hashing;

import java.io.ByteArrayOutputStream;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * The order of rows that have one hash: that of their canonical bytes.
 *
 * <p>A value is its kind in one byte and a word of eight, or the length in eight bytes and the bytes; null is nine
 * zero bytes. {@code featurestore.hashing.canonical} makes the same.
 */
public final class CanonicalOrder implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final byte[] NULL = new byte[9];

  private final ColumnReader[] columns;
  private final int[] kinds;

  /** Takes the columns of a row and the kind of the values of each. */
  public CanonicalOrder(ColumnReader[] columns, int[] kinds) {
    this.columns = columns;
    this.kinds = kinds;
  }

  /** Returns rows in their order. */
  public List<InternalRow> sorted(List<InternalRow> rows) {
    List<Sortable> sortable = new ArrayList<>(rows.size());
    for (InternalRow row : rows) {
      sortable.add(new Sortable(row, bytes(row)));
    }
    sortable.sort(Comparator.comparing(each -> each.bytes, Arrays::compareUnsigned));
    List<InternalRow> found = new ArrayList<>(rows.size());
    for (Sortable each : sortable) {
      found.add(each.row);
    }
    return found;
  }

  private static final class Sortable {
    private final InternalRow row;
    private final byte[] bytes;

    private Sortable(InternalRow row, byte[] bytes) {
      this.row = row;
      this.bytes = bytes;
    }
  }

  private byte[] bytes(InternalRow row) {
    ByteArrayOutputStream found = new ByteArrayOutputStream();
    for (int index = 0; index < columns.length; index++) {
      ColumnReader column = columns[index];
      if (column.isNull(row)) {
        found.writeBytes(NULL);
      } else if (column.isBytes()) {
        byte[] value = column.bytes(row);
        found.writeBytes(header(kinds[index], value.length));
        found.writeBytes(value);
      } else {
        long word = column.isFraction() ? column.doubleBits(row) : column.integer(row);
        found.writeBytes(header(kinds[index], word));
      }
    }
    return found.toByteArray();
  }

  private static byte[] header(int kind, long word) {
    return ByteBuffer.allocate(NULL.length).put((byte) kind).putLong(word).array();
  }
}
