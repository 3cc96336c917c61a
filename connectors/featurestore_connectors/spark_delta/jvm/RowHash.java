package featurestore.hashing;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The row hash of the store, which Spark's generated code calls for each value.
 *
 * <p>A row's hash is folded column by column: {@code fold} takes the hash so far and a value, and returns the hash
 * with that value. {@code docs/row-hash.md} defines it, and {@code featurestore.hashing} computes the same; the test
 * vectors hold for both. Words are unsigned: addition, multiplication and shifts of Java's {@code long} are the same.
 */
public final class RowHash {
  private static final long GOLDEN = 0x9E3779B97F4A7C15L;
  private static final int ROW = 13;
  private static final long NULL = tag(255);
  private static final long NAN = 0x7FF8L << 48;
  private static final VarHandle WORDS =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

  private RowHash() {}

  static long mix(long word) {
    word = (word ^ (word >>> 30)) * 0xBF58476D1CE4E5B9L;
    word = (word ^ (word >>> 27)) * 0x94D049BB133111EBL;
    return word ^ (word >>> 31);
  }

  /** Returns the word that represents a kind of values. */
  public static long tag(int kind) {
    return mix(kind * GOLDEN);
  }

  /** Returns the hash of a row without columns. */
  public static long start(long seed) {
    return mix(seed ^ tag(ROW));
  }

  /** Returns a hash with its sign bit flipped, so that signed numbers have the order of the unsigned hashes. */
  public static long finish(long state) {
    return state ^ Long.MIN_VALUE;
  }

  /** Folds an integer or a time. */
  public static long fold(long state, long value, boolean isNull, long tag) {
    return isNull ? mix(state + NULL) : foldWord(state, value, tag);
  }

  /** Folds an integer or a date. */
  public static long fold(long state, int value, boolean isNull, long tag) {
    return fold(state, (long) value, isNull, tag);
  }

  /** Folds an integer. */
  public static long fold(long state, short value, boolean isNull, long tag) {
    return fold(state, (long) value, isNull, tag);
  }

  /** Folds an integer. */
  public static long fold(long state, byte value, boolean isNull, long tag) {
    return fold(state, (long) value, isNull, tag);
  }

  /** Folds a boolean. */
  public static long fold(long state, boolean value, boolean isNull, long tag) {
    return fold(state, value ? 1L : 0L, isNull, tag);
  }

  /** Folds a float as the double of the same value. */
  public static long fold(long state, float value, boolean isNull, long tag) {
    return fold(state, (double) value, isNull, tag);
  }

  /** Folds a double: 0.0 and -0.0 are equal, and so are all NaN. */
  public static long fold(long state, double value, boolean isNull, long tag) {
    long bits = Double.doubleToRawLongBits(value);
    if (value == 0) {
      bits = 0;
    } else if (Double.isNaN(value)) {
      bits = NAN;
    }
    return fold(state, bits, isNull, tag);
  }

  /** Folds a text by its UTF-8 bytes, or null. */
  public static long fold(long state, UTF8String value, long tag) {
    return fold(state, value == null ? null : value.getBytes(), tag);
  }

  /** Folds bytes, or null. */
  public static long fold(long state, byte[] value, long tag) {
    return value == null ? mix(state + NULL) : foldBytes(state, value, tag);
  }

  static long foldWord(long state, long word, long tag) {
    return mix(state + mix(word ^ tag));
  }

  static long foldBytes(long state, byte[] value, long tag) {
    return mix(state + hashOf(value, tag));
  }

  static long hashOf(byte[] value, long tag) {
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
    return mix(sum + mix(value.length ^ tag));
  }
}
