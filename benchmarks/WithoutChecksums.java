import java.io.IOException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * The log store of the library without checksums, which checksums.py compares with the log store itself.
 *
 * <p>The log store adds checksums to files that have the name of a commit.
 */
public class WithoutChecksums extends featurestore.delta.PosixLogStore {
  private static final String PREFIX = "without-checksums-";

  public WithoutChecksums(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    Path unknown = new Path(path.getParent(), PREFIX + path.getName());
    super.write(unknown, actions, overwrite, configuration);
  }

  @Override
  public Path resolvePathOnPhysicalStorage(Path path, Configuration configuration)
      throws IOException {
    String name = path.getName();
    Path target = path;
    if (name.startsWith(PREFIX)) {
      target = new Path(path.getParent(), name.substring(PREFIX.length()));
    }
    return super.resolvePathOnPhysicalStorage(target, configuration);
  }
}
