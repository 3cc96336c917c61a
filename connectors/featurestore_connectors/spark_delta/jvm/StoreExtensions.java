package featurestore.spark;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.classic.SparkSession;
import scala.Function1;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * Registers the SQL functions of the store in every session of an application.
 *
 * <p>Spark creates this class by its name in {@code spark.sql.extensions}.
 */
public final class StoreExtensions extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  /** Creates a SQL function from its arguments, which are resolved. */
  interface Builder {
    Expression build(List<Expression> arguments);
  }

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    for (Map.Entry<String, Builder> each : StoreFunctions.BUILDERS.entrySet()) {
      String name = each.getKey();
      extensions.injectFunction(
          new Tuple3<>(new FunctionIdentifier(name), description(name), new Builds(each.getValue())));
    }
    return BoxedUnit.UNIT;
  }

  /** Registers the functions in a session that was created without this extension. */
  public static void register(SparkSession session) {
    FunctionRegistry registry = session.sessionState().functionRegistry();
    // Since 4.2, Spark requires identifiers with a catalog and a database, which differ between the
    // functions of extensions and of sessions. So names are compared, and Spark adds the rest.
    Set<String> names = new HashSet<>();
    for (FunctionIdentifier each : CollectionConverters.asJava(registry.listFunction())) {
      names.add(each.funcName());
    }
    for (Map.Entry<String, Builder> each : StoreFunctions.BUILDERS.entrySet()) {
      if (!names.contains(each.getKey())) {
        registry.createOrReplaceTempFunction(each.getKey(), new Builds(each.getValue()), "java_udf");
      }
    }
  }

  private static ExpressionInfo description(String name) {
    return new ExpressionInfo(StoreFunctions.class.getName(), name);
  }

  private static final class Builds extends AbstractFunction1<Seq<Expression>, Expression>
      implements Function1<Seq<Expression>, Expression> {
    private final Builder builder;

    private Builds(Builder builder) {
      this.builder = builder;
    }

    @Override
    public Expression apply(Seq<Expression> arguments) {
      return builder.build(CollectionConverters.asJava(arguments));
    }
  }
}
