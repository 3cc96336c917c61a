package featurestore.hashing;

import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;

/**
 * The hash that decides between rows of equal keys and times, as functions of Spark.
 *
 * <p>Each function adds to the sum so far what a column's value and name give, nothing where there is no value;
 * {@code finished} makes the hash of the sum. Floats count by their bits. {@code featurestore.hashing.tie_hash}
 * computes the same.
 */
public final class TieHash {
  private TieHash() {}

  /** Returns the function that adds words of a kind; {@code salt} is the hash of the column's name. */
  public static UserDefinedFunction words(int kind, long salt) {
    RowHash.OfWord hash = new RowHash.OfWord(kind);
    UDF2<Long, Long, Long> add = (sum, word) -> word == null ? sum : sum + hash.call(salt, word);
    return functions.udf(add, DataTypes.LongType);
  }

  /** Returns the function that adds floats. */
  public static UserDefinedFunction floats(int kind, long salt) {
    RowHash.OfWord hash = new RowHash.OfWord(kind);
    UDF2<Long, Float, Long> add =
        (sum, number) ->
            number == null ? sum : sum + hash.call(salt, ColumnReader.exactBits(number));
    return functions.udf(add, DataTypes.LongType);
  }

  /** Returns the function that adds doubles. */
  public static UserDefinedFunction doubles(int kind, long salt) {
    RowHash.OfWord hash = new RowHash.OfWord(kind);
    UDF2<Long, Double, Long> add =
        (sum, number) ->
            number == null ? sum : sum + hash.call(salt, Double.doubleToRawLongBits(number));
    return functions.udf(add, DataTypes.LongType);
  }

  /** Returns the function that adds byte strings of a kind. */
  public static UserDefinedFunction bytes(int kind, long salt) {
    RowHash.OfBytes hash = new RowHash.OfBytes(kind);
    UDF2<Long, byte[], Long> add =
        (sum, value) -> value == null ? sum : sum + hash.call(salt, value);
    return functions.udf(add, DataTypes.LongType);
  }

  /** Returns the function that makes the hash of a sum, as a signed number of the same order. */
  public static UserDefinedFunction finished() {
    UDF1<Long, Long> finish = sum -> RowHash.mix(sum) ^ Long.MIN_VALUE;
    return functions.udf(finish, DataTypes.LongType);
  }
}
