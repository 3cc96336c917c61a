package featurestore.hashing;

import java.io.Serializable;
import java.util.Objects;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.aggregate.ImperativeAggregate;
import org.apache.spark.sql.catalyst.expressions.aggregate.TypedImperativeAggregate;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * The aggregate that counts hashed rows by group and leading bits, with profiles of columns: {@link RowCounts}.
 *
 * <p>Its children are the hash, the group and the columns.
 */
public final class CountRows extends TypedImperativeAggregate<RowCounts>
    implements Serializable {
  private static final long serialVersionUID = 1L;

  private final int bits;
  private final Seq<Expression> columns;
  private final int bufferOffset;
  private final int inputOffset;
  private transient UnsafeProjection projection;
  private transient ColumnReader[] readers;

  /** Takes the number of leading bits, and hash, group and columns. */
  public CountRows(int bits, Seq<Expression> columns) {
    this(bits, columns, 0, 0);
  }

  private CountRows(int bits, Seq<Expression> columns, int bufferOffset, int inputOffset) {
    this.bits = bits;
    this.columns = columns;
    this.bufferOffset = bufferOffset;
    this.inputOffset = inputOffset;
  }

  @Override
  public RowCounts createAggregationBuffer() {
    return new RowCounts(bits, columns.size() - 2);
  }

  @Override
  public RowCounts update(RowCounts counts, InternalRow row) {
    if (readers == null) {
      // Spark evaluates the arguments of aggregates one by one; generated code is faster.
      projection = UnsafeProjection.create(columns);
      ColumnReader[] created = new ColumnReader[columns.size()];
      for (int index = 0; index < created.length; index++) {
        created[index] = ColumnReader.of(index, columns.apply(index).dataType());
      }
      readers = created;
    }
    counts.add(projection.apply(row), readers);
    return counts;
  }

  @Override
  public RowCounts merge(RowCounts counts, RowCounts other) {
    return counts.merge(other);
  }

  @Override
  public Object eval(RowCounts counts) {
    return UTF8String.fromString(counts.toJson());
  }

  @Override
  public byte[] serialize(RowCounts counts) {
    return counts.toBytes();
  }

  @Override
  public RowCounts deserialize(byte[] bytes) {
    return RowCounts.fromBytes(bytes);
  }

  @Override
  public boolean nullable() {
    return false;
  }

  @Override
  public DataType dataType() {
    return DataTypes.StringType;
  }

  @Override
  public int mutableAggBufferOffset() {
    return bufferOffset;
  }

  @Override
  public int inputAggBufferOffset() {
    return inputOffset;
  }

  @Override
  public ImperativeAggregate withNewMutableAggBufferOffset(int offset) {
    return new CountRows(bits, columns, offset, inputOffset);
  }

  @Override
  public ImperativeAggregate withNewInputAggBufferOffset(int offset) {
    return new CountRows(bits, columns, bufferOffset, offset);
  }

  @Override
  public Seq<Expression> children() {
    return columns;
  }

  @Override
  public Expression withNewChildrenInternal(IndexedSeq<Expression> children) {
    return new CountRows(bits, children, bufferOffset, inputOffset);
  }

  @Override
  public String prettyName() {
    return "featurestore_count_rows";
  }

  // Spark compares and copies expressions as the products of their arguments.

  @Override
  public int productArity() {
    return 4;
  }

  @Override
  public Object productElement(int index) {
    switch (index) {
      case 0:
        return bits;
      case 1:
        return columns;
      case 2:
        return bufferOffset;
      default:
        return inputOffset;
    }
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof CountRows;
  }

  @Override
  public boolean equals(Object other) {
    if (!(other instanceof CountRows)) {
      return false;
    }
    CountRows that = (CountRows) other;
    return bits == that.bits
        && bufferOffset == that.bufferOffset
        && inputOffset == that.inputOffset
        && columns.equals(that.columns);
  }

  @Override
  public int hashCode() {
    return Objects.hash(bits, columns, bufferOffset, inputOffset);
  }

  @Override
  public Iterator<Object> productIterator() {
    return scala.runtime.ScalaRunTime.typedProductIterator(this);
  }
}
