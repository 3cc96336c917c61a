package featurestore.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.Iterator;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;

/**
 * The Delta log on a local or shared POSIX file system: a commit is a hard link, which never replaces a file.
 *
 * <p>Delta's own log stores look whether a commit is there and then rename theirs into place, and a rename replaces
 * what another writer committed in between. Here the kernel (or the file server) decides who was first.
 *
 * <p>Configured with {@code spark.delta.logStore.file.impl=featurestore.delta.PosixLogStore}.
 */
public class PosixLogStore extends HadoopFileSystemLogStore {

  /** Delta makes log stores by this constructor. */
  public PosixLogStore(Configuration configuration) {
    super(configuration);
  }

  /**
   * Writes a file that appears at once with all its lines.
   *
   * @throws FileAlreadyExistsException the file is there and may not be replaced
   */
  @Override
  public void write(
      org.apache.hadoop.fs.Path path,
      Iterator<String> actions,
      Boolean overwrite,
      Configuration configuration)
      throws IOException {
    Path target = localPath(resolvePathOnPhysicalStorage(path, configuration));
    Path folder = target.getParent();
    if (!overwrite && Files.exists(target)) {
      throw new FileAlreadyExistsException(target.toString());
    }
    // Not a name of the log's: nobody who lists the folder takes it for a commit.
    Path temporary = folder.resolve("." + UUID.randomUUID() + ".tmp");
    try {
      writeThrough(temporary, actions);
      if (overwrite) {
        // Hadoop checks files against a sum beside them; that of the replaced content must not stay.
        Files.deleteIfExists(folder.resolve("." + target.getFileName() + ".crc"));
        Files.move(
            temporary, target, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
      } else {
        link(temporary, target);
      }
    } finally {
      removeQuietly(temporary);
    }
    syncQuietly(folder);
  }

  /** Tells Delta that other files (checkpoints) are to be written under a temporary name first. */
  @Override
  public Boolean isPartialWriteVisible(
      org.apache.hadoop.fs.Path path, Configuration configuration) {
    return true;
  }

  private static Path localPath(org.apache.hadoop.fs.Path path) throws IOException {
    String scheme = path.toUri().getScheme();
    if (scheme != null && !scheme.equals("file")) {
      throw new IOException(
          "PosixLogStore writes files of this file system only, and the log is at " + path);
    }
    return new File(path.toUri().getPath()).toPath();
  }

  private static void writeThrough(Path path, Iterator<String> actions) throws IOException {
    try (FileChannel channel =
        FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
      StringBuilder lines = new StringBuilder();
      while (actions.hasNext()) {
        lines.append(actions.next()).append('\n');
        if (lines.length() > 1 << 20) {
          writeAll(channel, lines);
        }
      }
      writeAll(channel, lines);
      channel.force(true);
    } catch (NoSuchFileException error) {
      // What Delta expects for a table that is not there.
      throw new java.io.FileNotFoundException("No such file or directory: " + path.getParent());
    } catch (UncheckedIOException error) {
      throw error.getCause();
    }
  }

  private static void writeAll(FileChannel channel, StringBuilder lines) throws IOException {
    ByteBuffer bytes = StandardCharsets.UTF_8.encode(lines.toString());
    while (bytes.hasRemaining()) {
      channel.write(bytes);
    }
    lines.setLength(0);
  }

  private static void link(Path temporary, Path target) throws IOException {
    try {
      Files.createLink(target, temporary);
    } catch (UnsupportedOperationException error) {
      throw new IOException("The file system of " + target + " has no hard links.", error);
    } catch (IOException error) {
      // On network file systems the answer to a link that was made may be lost.
      if (!Files.exists(target) || !Files.isSameFile(temporary, target)) {
        throw error;
      }
    }
  }

  // After the link the commit stands, whatever happens: nothing here may look like its failure.

  private static void removeQuietly(Path path) {
    try {
      Files.deleteIfExists(path);
    } catch (IOException ignored) {
      // The store's vacuum removes what is left.
    }
  }

  private static void syncQuietly(Path folder) {
    try (FileChannel channel = FileChannel.open(folder, StandardOpenOption.READ)) {
      channel.force(true);
    } catch (IOException ignored) {
      // Some network file systems cannot sync a directory: its names are safe with their server.
    }
  }
}
