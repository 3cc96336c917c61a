package featurestore.spark;

import featurestore.hashing.CountRows;
import featurestore.hashing.RowHash;
import featurestore.hashing.TieHash;
import featurestore.spark.StoreExtensions.Builder;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.expressions.Coalesce;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The SQL functions of the store.
 *
 * <p>They become calls of static methods, which Spark compiles into its generated code, so that values are not boxed.
 */
final class StoreFunctions {
  static final Map<String, Builder> BUILDERS = new LinkedHashMap<>();

  static {
    BUILDERS.put("featurestore_row_hash", StoreFunctions::rowHash);
    BUILDERS.put("featurestore_tie_hash", StoreFunctions::tieHash);
    BUILDERS.put("featurestore_range_number", StoreFunctions::rangeNumber);
    BUILDERS.put("featurestore_count_rows", StoreFunctions::countRows);
    BUILDERS.put("featurestore_parallelism", StoreFunctions::parallelism);
    BUILDERS.put("featurestore_log_store", StoreFunctions::logStore);
  }

  private StoreFunctions() {}

  /** Builds {@code featurestore_row_hash(seed, column, ...)}: a bigint in the order of the unsigned hash. */
  private static Expression rowHash(List<Expression> arguments) {
    check(arguments.size() > 1, "featurestore_row_hash(seed, column, ...)");
    long seed = ((Number) constant(arguments.get(0))).longValue();
    Expression state = new Literal(RowHash.start(seed), DataTypes.LongType);
    for (Expression value : arguments.subList(1, arguments.size())) {
      long tag = RowHash.tag(kindOf(value.dataType()));
      state = folded(RowHash.class, state, value, tag);
    }
    return call(RowHash.class, "finish", List.of(state));
  }

  /** Builds {@code featurestore_tie_hash(name, column, ...)}: a bigint in the order of the unsigned hash. */
  private static Expression tieHash(List<Expression> arguments) {
    boolean isPairs = arguments.size() > 1 && arguments.size() % 2 == 0;
    check(isPairs, "featurestore_tie_hash(name, column, ...)");
    Expression sum = new Literal(0L, DataTypes.LongType);
    for (int index = 0; index < arguments.size(); index += 2) {
      long salt = TieHash.salt(((UTF8String) constant(arguments.get(index))).getBytes());
      Expression value = arguments.get(index + 1);
      long tag = RowHash.tag(kindOf(value.dataType()));
      sum = folded(TieHash.class, sum, value, tag, salt);
    }
    return call(TieHash.class, "finish", List.of(sum));
  }

  /**
   * Builds {@code featurestore_range_number(value, starts, numbers)}: the number of a value's range. The starts of the
   * second and later ranges, strictly ascending, and the numbers of all ranges are big-endian bytes.
   */
  private static Expression rangeNumber(List<Expression> arguments) {
    check(arguments.size() == 3, "featurestore_range_number(value, starts, numbers)");
    byte[] starts = (byte[]) constant(arguments.get(1));
    byte[] numbers = (byte[]) constant(arguments.get(2));
    Ranges ranges = new Ranges(starts, numbers);
    return new Invoke(
        Literal.fromObject(ranges, new ObjectType(Ranges.class)),
        "find",
        DataTypes.IntegerType,
        sequence(List.of(arguments.get(0))),
        sequence(List.of()),
        true,
        false,
        true);
  }

  /** Builds the aggregate {@code featurestore_count_rows(bits, hash, group, column, ...)}: JSON text. */
  private static Expression countRows(List<Expression> arguments) {
    check(arguments.size() > 2, "featurestore_count_rows(bits, hash, group, column, ...)");
    int bits = ((Number) constant(arguments.get(0))).intValue();
    return new CountRows(bits, sequence(arguments.subList(1, arguments.size())));
  }

  /** Builds {@code featurestore_parallelism()}: the number of tasks that the application runs at a time. */
  private static Expression parallelism(List<Expression> arguments) {
    check(arguments.isEmpty(), "featurestore_parallelism()");
    int tasks = SparkContext.getOrCreate().defaultParallelism();
    return new Literal(tasks, DataTypes.IntegerType);
  }

  /** Builds {@code featurestore_log_store(key)}: a setting of Delta's log stores with which Spark was started, or "". */
  private static Expression logStore(List<Expression> arguments) {
    check(arguments.size() == 1, "featurestore_log_store(key)");
    String key = constant(arguments.get(0)).toString();
    check(key.contains("delta.logStore."), "a setting of a log store");
    UTF8String value = UTF8String.fromString(SparkContext.getOrCreate().getConf().get(key, ""));
    return new Literal(value, DataTypes.StringType);
  }

  private static Expression folded(Class<?> hash, Expression state, Expression value, long... words) {
    List<Expression> arguments = new ArrayList<>(List.of(state));
    DataType type = value.dataType();
    if (type instanceof StringType || type instanceof BinaryType) {
      arguments.add(value);
    } else {
      // Methods take primitive values, which cannot be null.
      arguments.add(new Coalesce(sequence(List.of(value, zero(type)))));
      arguments.add(new IsNull(value));
    }
    for (long word : words) {
      arguments.add(new Literal(word, DataTypes.LongType));
    }
    return call(hash, "fold", arguments);
  }

  private static Expression call(Class<?> owner, String method, List<Expression> arguments) {
    return new StaticInvoke(
        owner,
        DataTypes.LongType,
        method,
        sequence(arguments),
        sequence(List.of()),
        false,
        false,
        true,
        Option.empty());
  }

  /** Returns the kind of a type's values in hashes, as {@code featurestore.hashing.value_kind}. */
  private static int kindOf(DataType type) {
    if (type instanceof BooleanType) {
      return 1;
    } else if (type instanceof ByteType
        || type instanceof ShortType
        || type instanceof IntegerType
        || type instanceof LongType) {
      return 2;
    } else if (type instanceof FloatType || type instanceof DoubleType) {
      return 4;
    } else if (type instanceof StringType) {
      return 5;
    } else if (type instanceof BinaryType) {
      return 6;
    } else if (type instanceof DateType) {
      return 7;
    } else if (type instanceof TimestampType) {
      return 8;
    }
    throw new IllegalArgumentException("Rows with the type " + type.sql() + " cannot be hashed.");
  }

  private static Literal zero(DataType type) {
    if (type instanceof BooleanType) {
      return new Literal(false, type);
    } else if (type instanceof ByteType) {
      return new Literal((byte) 0, type);
    } else if (type instanceof ShortType) {
      return new Literal((short) 0, type);
    } else if (type instanceof IntegerType || type instanceof DateType) {
      return new Literal(0, type);
    } else if (type instanceof FloatType) {
      return new Literal(0f, type);
    } else if (type instanceof DoubleType) {
      return new Literal(0d, type);
    }
    return new Literal(0L, type);
  }

  private static Object constant(Expression argument) {
    check(argument.foldable(), "constants for the parameters");
    Object value = argument.eval(null);
    check(value != null, "parameters that are not null");
    return value;
  }

  private static void check(boolean isValid, String expected) {
    if (!isValid) {
      throw new IllegalArgumentException("Expected " + expected + ".");
    }
  }

  private static <T> Seq<T> sequence(List<T> items) {
    return CollectionConverters.asScala(items).toSeq();
  }

  /** Ranges of numbers, each with a number of its own. */
  public static final class Ranges implements java.io.Serializable {
    private static final long serialVersionUID = 1L;
    private final long[] starts;
    private final int[] numbers;

    private Ranges(byte[] starts, byte[] numbers) {
      this.starts = new long[starts.length / Long.BYTES];
      ByteBuffer.wrap(starts).asLongBuffer().get(this.starts);
      this.numbers = new int[numbers.length / Integer.BYTES];
      ByteBuffer.wrap(numbers).asIntBuffer().get(this.numbers);
    }

    /** Returns the number of the range of a value. */
    public int find(long value) {
      int position = Arrays.binarySearch(starts, value);
      return numbers[position >= 0 ? position + 1 : -position - 1];
    }
  }
}
