package featurestore.hashing;

import org.apache.spark.unsafe.types.UTF8String;

/**
 * The hash that decides between rows of equal keys and times, which Spark's generated code calls for each value.
 *
 * <p>{@code fold} adds the hash of a column's value and name to the sum so far, and nothing for null; {@code finish}
 * returns the hash of the sum. Floats count by their bits. {@code featurestore.hashing.tie_hash} computes the same.
 */
public final class TieHash {
  private static final int TEXT = 5;

  private TieHash() {}

  /** Returns the word that represents a column name. */
  public static long salt(byte[] name) {
    return RowHash.mix(RowHash.hashOf(name, RowHash.tag(TEXT)));
  }

  /** Returns the hash of a sum, as a signed number of the same order. */
  public static long finish(long sum) {
    return RowHash.mix(sum) ^ Long.MIN_VALUE;
  }

  /** Adds an integer or a time. */
  public static long fold(long sum, long value, boolean isNull, long tag, long salt) {
    return isNull ? sum : sum + RowHash.foldWord(salt, value, tag);
  }

  /** Adds an integer or a date. */
  public static long fold(long sum, int value, boolean isNull, long tag, long salt) {
    return fold(sum, (long) value, isNull, tag, salt);
  }

  /** Adds an integer. */
  public static long fold(long sum, short value, boolean isNull, long tag, long salt) {
    return fold(sum, (long) value, isNull, tag, salt);
  }

  /** Adds an integer. */
  public static long fold(long sum, byte value, boolean isNull, long tag, long salt) {
    return fold(sum, (long) value, isNull, tag, salt);
  }

  /** Adds a boolean. */
  public static long fold(long sum, boolean value, boolean isNull, long tag, long salt) {
    return fold(sum, value ? 1L : 0L, isNull, tag, salt);
  }

  /** Adds a float; NaN keep sign and payload. */
  public static long fold(long sum, float value, boolean isNull, long tag, long salt) {
    return fold(sum, ColumnReader.exactBits(value), isNull, tag, salt);
  }

  /** Adds a double; NaN keep sign and payload. */
  public static long fold(long sum, double value, boolean isNull, long tag, long salt) {
    return fold(sum, Double.doubleToRawLongBits(value), isNull, tag, salt);
  }

  /** Adds a text by its UTF-8 bytes, or nothing for null. */
  public static long fold(long sum, UTF8String value, long tag, long salt) {
    return fold(sum, value == null ? null : value.getBytes(), tag, salt);
  }

  /** Adds bytes, or nothing for null. */
  public static long fold(long sum, byte[] value, long tag, long salt) {
    return value == null ? sum : sum + RowHash.foldBytes(salt, value, tag);
  }
}
