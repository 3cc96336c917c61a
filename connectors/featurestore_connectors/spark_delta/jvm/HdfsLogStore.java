package featurestore.delta;

import io.delta.storage.HDFSLogStore;
import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * The Delta log in HDFS, as Delta's own log store writes it, with the checksums of {@link CommitChecksums}.
 *
 * <p>Configured with {@code spark.delta.logStore.hdfs.impl=featurestore.delta.HdfsLogStore}.
 */
public class HdfsLogStore extends HDFSLogStore {
  /** Delta creates log stores with this constructor. */
  public HdfsLogStore(Configuration configuration) {
    super(configuration);
  }

  /** Writes a file that appears at once with all its lines. */
  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    super.write(
        path, CommitChecksums.seal(path, actions, configuration), overwrite, configuration);
  }
}
