package featurestore.delta;

import com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Google's connector without objects for folders.
 *
 * <p>The connector creates an empty object with the name {@code folder/}. Other clients cannot address this name, so
 * such an object would remain after a table is removed. Folders exist as long as they contain an object.
 *
 * <p>Configured with {@code fs.gs.impl=featurestore.delta.GcsFileSystem}.
 */
public class GcsFileSystem extends GoogleHadoopFileSystem {
  /** Creates nothing: the first object of a folder creates it. */
  @Override
  public boolean mkdirs(Path path, FsPermission permission) {
    return true;
  }
}
