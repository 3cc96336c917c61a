package featurestore.delta;

import io.delta.storage.CloseableIterator;
import io.delta.storage.GCSLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * The Delta log in Google Cloud Storage: a commit is one upload on the condition that the object has no generation.
 *
 * <p>Delta's own log store sets this condition. But if the response to an upload is lost, Google's client sends the
 * upload again, which fails because of the first upload. Delta would then commit the same rows a second time. After a
 * failure this log store compares the object with the commit. No two commits are equal, since each contains a random
 * id.
 *
 * <p>Configured with {@code spark.delta.logStore.gs.impl=featurestore.delta.GcsLogStore}.
 */
public class GcsLogStore extends GCSLogStore {
  /** Delta creates log stores with this constructor. */
  public GcsLogStore(Configuration configuration) {
    super(configuration);
  }

  /**
   * Writes an object that becomes visible with all its lines.
   *
   * @throws FileAlreadyExistsException the object exists and must not be replaced
   */
  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    List<String> lines = new ArrayList<>();
    CommitChecksums.seal(path, actions, configuration).forEachRemaining(lines::add);
    try {
      super.write(path, lines.iterator(), overwrite, configuration);
    } catch (IOException error) {
      if (!containsLines(path, lines, configuration)) {
        throw error;
      }
    }
  }

  private boolean containsLines(Path path, List<String> lines, Configuration configuration)
      throws IOException {
    try (CloseableIterator<String> stored = read(path, configuration)) {
      for (String line : lines) {
        if (!stored.hasNext() || !stored.next().equals(line)) {
          return false;
        }
      }
      return !stored.hasNext();
    } catch (FileNotFoundException error) {
      return false;
    }
  }
}
