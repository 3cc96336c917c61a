package featurestore.hashing;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;

/**
 * The row hash of the store as functions of Spark, so that rows are hashed where they are.
 *
 * <p>A row's hash is folded column by column: each function takes the hash so far and a value, and gives the hash
 * with that value. {@code docs/row-hash.md} defines it, and {@code featurestore.hashing} computes the same; the test
 * vectors hold for both. Words are unsigned, as Java's {@code long} is where it is only added, multiplied and shifted.
 */
public final class RowHash {
  private static final long GOLDEN = 0x9E3779B97F4A7C15L;
  private static final long NULL = tag(255);
  private static final long NAN = 0x7FF8L << 48;

  private RowHash() {}

  /** Returns the function that folds words of a kind: called from Python, which would not tell the overloads apart. */
  public static UserDefinedFunction words(int kind) {
    return functions.udf(new OfWord(kind), DataTypes.LongType);
  }

  /** Returns the function that folds numbers with a fraction. */
  public static UserDefinedFunction doubles(int kind) {
    return functions.udf(new OfDouble(kind), DataTypes.LongType);
  }

  /** Returns the function that folds byte strings of a kind. */
  public static UserDefinedFunction bytes(int kind) {
    return functions.udf(new OfBytes(kind), DataTypes.LongType);
  }

  /** Returns the function that tells the number of a value's range. */
  public static UserDefinedFunction ranges(byte[] starts, byte[] numbers) {
    return functions.udf(new Ranges(starts, numbers), DataTypes.IntegerType);
  }

  static long mix(long word) {
    word = (word ^ (word >>> 30)) * 0xBF58476D1CE4E5B9L;
    word = (word ^ (word >>> 27)) * 0x94D049BB133111EBL;
    return word ^ (word >>> 31);
  }

  private static long tag(int kind) {
    return mix(kind * GOLDEN);
  }

  /** Folds values of one word: whole numbers, times, dates, truth values as 0 and 1. */
  public static final class OfWord implements UDF2<Long, Long, Long> {
    private static final long serialVersionUID = 1L;
    private final long tag;

    /** Takes the kind of the values. */
    public OfWord(int kind) {
      this.tag = tag(kind);
    }

    @Override
    public Long call(Long state, Long word) {
      return mix(state + (word == null ? NULL : mix(word ^ tag)));
    }
  }

  /** Folds numbers with a fraction: 0.0 and -0.0 are alike, and so are all NaN. */
  public static final class OfDouble implements UDF2<Long, Double, Long> {
    private static final long serialVersionUID = 1L;
    private final long tag;

    /** Takes the kind of the values. */
    public OfDouble(int kind) {
      this.tag = tag(kind);
    }

    @Override
    public Long call(Long state, Double value) {
      if (value == null) {
        return mix(state + NULL);
      }
      long bits = Double.doubleToRawLongBits(value);
      if (value == 0) {
        bits = 0;
      } else if (Double.isNaN(value)) {
        bits = NAN;
      }
      return mix(state + mix(bits ^ tag));
    }
  }

  /** Folds texts, as their UTF-8 bytes, and bytes. */
  public static final class OfBytes implements UDF2<Long, byte[], Long> {
    private static final long serialVersionUID = 1L;
    private static final VarHandle WORDS =
        MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    private final long tag;

    /** Takes the kind of the values. */
    public OfBytes(int kind) {
      this.tag = tag(kind);
    }

    @Override
    public Long call(Long state, byte[] value) {
      if (value == null) {
        return mix(state + NULL);
      }
      long sum = 0;
      long position = GOLDEN;
      int whole = value.length & ~7;
      for (int start = 0; start < whole; start += 8) {
        sum += mix((long) WORDS.get(value, start) + position);
        position += GOLDEN;
      }
      if (whole < value.length) {
        long last = 0;
        for (int index = value.length - 1; index >= whole; index--) {
          last = last << 8 | (value[index] & 0xFF);
        }
        sum += mix(last + position);
      }
      return mix(state + mix(sum + mix(value.length ^ tag)));
    }
  }

  /** Tells in which of some ranges a value lies, by the number of that range. */
  public static final class Ranges implements UDF1<Long, Integer> {
    private static final long serialVersionUID = 1L;
    private final long[] starts;
    private final int[] numbers;

    /**
     * Takes where the second and later ranges begin, strictly ascending, and the numbers of all ranges, both as
     * big-endian bytes.
     */
    public Ranges(byte[] starts, byte[] numbers) {
      this.starts = new long[starts.length / Long.BYTES];
      ByteBuffer.wrap(starts).asLongBuffer().get(this.starts);
      this.numbers = new int[numbers.length / Integer.BYTES];
      ByteBuffer.wrap(numbers).asIntBuffer().get(this.numbers);
    }

    @Override
    public Integer call(Long value) {
      int found = Arrays.binarySearch(starts, value);
      return numbers[found >= 0 ? found + 1 : -found - 1];
    }
  }
}
