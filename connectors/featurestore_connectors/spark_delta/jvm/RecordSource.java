package featurestore.tfrecord;

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The data source {@code featurestore-tfrecord}: writes rows as shards of records.
 *
 * <p>A write takes the options {@code task} (JSON, see {@link RecordShards}) and {@code id}. A read with the same id
 * returns the reports of the shards, once: a write returns nothing to its caller.
 */
public final class RecordSource implements TableProvider, DataSourceRegister {
  private static final String NAME = "featurestore-tfrecord";
  private static final StructType REPORTS = new StructType().add("report", DataTypes.StringType);
  // Of writes whose caller has not read the reports.
  private static final Map<String, List<String>> REPORTS_OF_WRITES = new ConcurrentHashMap<>();

  @Override
  public String shortName() {
    return NAME;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return REPORTS;
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new Shards(schema);
  }

  private static String option(CaseInsensitiveStringMap options, String name) {
    String value = options.get(name);
    if (value == null) {
      throw new IllegalArgumentException(NAME + " requires the option " + name + ".");
    }
    return value;
  }

  private static final class Shards implements SupportsWrite, SupportsRead {
    private final StructType schema;

    private Shards(StructType schema) {
      this.schema = schema;
    }

    @Override
    public String name() {
      return NAME;
    }

    @Override
    @Deprecated
    public StructType schema() {
      return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
      return Set.of(
          TableCapability.BATCH_READ,
          TableCapability.BATCH_WRITE,
          TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new WriteBuilder() {
        @Override
        public Write build() {
          return new ShardsWrite(info);
        }
      };
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      String id = option(options, "id");
      return () -> new Reports(id);
    }
  }

  private static final class ShardsWrite implements Write, BatchWrite {
    private final String id;
    private final RecordShards shards;

    private ShardsWrite(LogicalWriteInfo info) {
      id = option(info.options(), "id");
      try {
        shards = new RecordShards(option(info.options(), "task"), info.schema());
      } catch (IOException error) {
        throw new IllegalArgumentException("The option task is not valid JSON.", error);
      }
    }

    @Override
    public BatchWrite toBatch() {
      return this;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new WriterFactory(shards);
    }

    @Override
    public boolean useCommitCoordinator() {
      // Each attempt of a task replaces the shards by the same bytes.
      return false;
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      List<String> reports = new ArrayList<>();
      for (WriterCommitMessage each : messages) {
        reports.addAll(((WrittenShards) each).reports);
      }
      REPORTS_OF_WRITES.put(id, reports);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      // The store removes the directory of a failed export.
    }
  }

  private static final class WriterFactory implements DataWriterFactory {
    private static final long serialVersionUID = 1L;
    private final RecordShards shards;

    private WriterFactory(RecordShards shards) {
      this.shards = shards;
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      RecordShards.Output output = shards.open();
      return new DataWriter<>() {
        @Override
        public void write(InternalRow row) {
          output.add(row);
        }

        @Override
        public WriterCommitMessage commit() {
          return new WrittenShards(output.finish());
        }

        @Override
        public void abort() {
          output.abandon();
        }

        @Override
        public void close() {
          output.abandon();
        }
      };
    }
  }

  private static final class WrittenShards implements WriterCommitMessage, Serializable {
    private static final long serialVersionUID = 1L;
    private final ArrayList<String> reports;

    private WrittenShards(ArrayList<String> reports) {
      this.reports = reports;
    }
  }

  /** Reads the reports of a write in the driver. */
  private static final class Reports implements LocalScan {
    private final String id;
    private List<String> reports;

    private Reports(String id) {
      this.id = id;
    }

    @Override
    public StructType readSchema() {
      return REPORTS;
    }

    @Override
    public InternalRow[] rows() {
      if (reports == null) {
        reports = REPORTS_OF_WRITES.remove(id);
      }
      if (reports == null) {
        throw new IllegalStateException("No write with the id " + id + " has reports.");
      }
      InternalRow[] rows = new InternalRow[reports.size()];
      Arrays.setAll(
          rows,
          index ->
              new GenericInternalRow(new Object[] {UTF8String.fromString(reports.get(index))}));
      return rows;
    }
  }
}
