package featurestore.hashing;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;

/** Reads one column of Spark's rows: its values as whole numbers, as numbers with a fraction, or as bytes. */
public final class ColumnReader implements Serializable {
  private static final long serialVersionUID = 1L;

  private enum Kind {
    BOOLEAN,
    BYTE,
    SHORT,
    INTEGER,
    LONG,
    FLOAT,
    DOUBLE,
    TEXT,
    BYTES,
    OTHER
  }

  private final int ordinal;
  private final Kind kind;

  private ColumnReader(int ordinal, Kind kind) {
    this.ordinal = ordinal;
    this.kind = kind;
  }

  /** Returns the reader of a column. */
  public static ColumnReader of(StructType schema, String name) {
    int ordinal = schema.fieldIndex(name);
    return of(ordinal, schema.fields()[ordinal].dataType());
  }

  /** Returns the reader of the column at a position. */
  static ColumnReader of(int ordinal, DataType type) {
    return new ColumnReader(ordinal, kindOf(type));
  }

  private static Kind kindOf(DataType type) {
    if (type instanceof BooleanType) {
      return Kind.BOOLEAN;
    } else if (type instanceof ByteType) {
      return Kind.BYTE;
    } else if (type instanceof ShortType) {
      return Kind.SHORT;
    } else if (type instanceof IntegerType || type instanceof DateType) {
      return Kind.INTEGER;
    } else if (type instanceof LongType || type instanceof TimestampType) {
      return Kind.LONG;
    } else if (type instanceof FloatType) {
      return Kind.FLOAT;
    } else if (type instanceof DoubleType) {
      return Kind.DOUBLE;
    } else if (type instanceof StringType) {
      return Kind.TEXT;
    } else if (type instanceof BinaryType) {
      return Kind.BYTES;
    }
    return Kind.OTHER;
  }

  /** Tells whether all that is known of the column is where it has no value. */
  public boolean isOpaque() {
    return kind == Kind.OTHER;
  }

  /** Tells whether the column holds texts or bytes. */
  public boolean isBytes() {
    return kind == Kind.TEXT || kind == Kind.BYTES;
  }

  /** Tells whether the column holds numbers with a fraction. */
  public boolean isFraction() {
    return kind == Kind.FLOAT || kind == Kind.DOUBLE;
  }

  /** Tells whether a row has no value. */
  public boolean isNull(InternalRow row) {
    return row.isNullAt(ordinal);
  }

  /** Returns the whole number, day, microsecond or truth value of a row. */
  public long integer(InternalRow row) {
    switch (kind) {
      case BOOLEAN:
        return row.getBoolean(ordinal) ? 1 : 0;
      case BYTE:
        return row.getByte(ordinal);
      case SHORT:
        return row.getShort(ordinal);
      case INTEGER:
        return row.getInt(ordinal);
      default:
        return row.getLong(ordinal);
    }
  }

  /** Returns the bits of the number of a row as a float. */
  public int floatBits(InternalRow row) {
    float number = kind == Kind.FLOAT ? row.getFloat(ordinal) : (float) row.getDouble(ordinal);
    return Float.floatToRawIntBits(number);
  }

  /** Returns the bits of the number of a row as a double; NaN keep sign and payload. */
  public long doubleBits(InternalRow row) {
    if (kind == Kind.FLOAT) {
      return exactBits(row.getFloat(ordinal));
    }
    return Double.doubleToRawLongBits(row.getDouble(ordinal));
  }

  /** Returns the bits of a float as a double; a cast would change some NaN. */
  static long exactBits(float number) {
    if (!Float.isNaN(number)) {
      return Double.doubleToRawLongBits(number);
    }
    long bits = Float.floatToRawIntBits(number);
    return (bits & 0x80000000L) << 32 | 0x7FFL << 52 | (bits & 0x7FFFFFL) << 29;
  }

  /** Returns the bytes of a row, of texts those in UTF-8. */
  public byte[] bytes(InternalRow row) {
    return kind == Kind.TEXT ? row.getUTF8String(ordinal).getBytes() : row.getBinary(ordinal);
  }

  /** Returns how many bytes a row has. */
  public int length(InternalRow row) {
    if (kind == Kind.TEXT) {
      return row.getUTF8String(ordinal).numBytes();
    }
    return row.getBinary(ordinal).length;
  }
}
