package featurestore.delta;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.delta.storage.HadoopFileSystemLogStore;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;

/**
 * The Delta log on a local or shared POSIX file system: a commit is a hard link, which never replaces a file.
 *
 * <p>Delta's own log stores look whether a commit is there and then rename theirs into place, and a rename replaces
 * what another writer committed in between. Here the kernel (or the file server) decides who was first.
 *
 * <p>The data files that a commit adds are brought to disk before the commit has its name, so that no power loss
 * leaves a commit without its rows. {@code featurestore.durability=fast} in the session leaves that to the system.
 *
 * <p>Configured with {@code spark.delta.logStore.file.impl=featurestore.delta.PosixLogStore}.
 */
public class PosixLogStore extends HadoopFileSystemLogStore {
  /** The setting of a session that says whether commits are on disk when they are acknowledged. */
  private static final String DURABILITY = "featurestore.durability";

  private static final String ADD = "{\"add\":";
  // Disks take several requests at a time; more than this many gain nothing.
  private static final int SYNC_THREADS = 8;
  private static final ObjectMapper JSON = new ObjectMapper();

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
    Collection<Path> added = new ArrayList<>();
    try {
      Iterator<String> lines = CommitChecksums.seal(path, actions, configuration);
      writeThrough(temporary, lines, folder.getParent(), added);
      if (!"fast".equals(configuration.get(DURABILITY))) {
        sync(added, folder.getParent());
      }
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

  /** Writes the actions, and collects the data files of the table that they add. */
  private static void writeThrough(
      Path path, Iterator<String> actions, Path table, Collection<Path> added) throws IOException {
    try (FileChannel channel =
        FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
      StringBuilder lines = new StringBuilder();
      while (actions.hasNext()) {
        String action = actions.next();
        lines.append(action).append('\n');
        if (action.startsWith(ADD)) {
          addDataFile(added, table, action);
        }
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

  private static void addDataFile(Collection<Path> added, Path table, String action)
      throws IOException {
    String text = JSON.readTree(action).path("add").path("path").asText();
    try {
      Path file = table.resolve(new URI(text).getPath());
      // One that this machine does not see is on the disks of others, who sync it or not.
      if (Files.exists(file)) {
        added.add(file);
      }
      // Hadoop's sum of the file: where half of it is lost, Spark takes the file for damaged.
      Path sum = file.resolveSibling("." + file.getFileName() + ".crc");
      if (Files.exists(sum)) {
        added.add(sum);
      }
    } catch (URISyntaxException | NullPointerException ignored) {
      // No name that Delta's readers find a file by.
    }
  }

  /** Brings files to disk, several at a time, and then their names and those of their partitions. */
  private static void sync(Collection<Path> files, Path table) throws IOException {
    Set<Path> folders = new TreeSet<>();
    for (Path file : files) {
      Path folder = file.getParent();
      // A partition's folder may be new, too: its name is in the folder above.
      while (folders.add(folder) && folder.startsWith(table) && !folder.equals(table)) {
        folder = folder.getParent();
      }
    }
    if (files.isEmpty()) {
      return;
    }
    ExecutorService pool = Executors.newFixedThreadPool(Math.min(SYNC_THREADS, files.size()));
    try {
      List<Future<?>> syncing = new ArrayList<>();
      for (Path file : files) {
        syncing.add(
            pool.submit(
                () -> {
                  force(file);
                  return null;
                }));
      }
      for (Future<?> each : syncing) {
        each.get();
      }
    } catch (ExecutionException error) {
      throw new IOException("A data file could not be brought to disk.", error.getCause());
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException("Interrupted while data files were brought to disk.", error);
    } finally {
      pool.shutdownNow();
    }
    folders.forEach(PosixLogStore::syncQuietly);
  }

  private static void force(Path file) throws IOException {
    try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ)) {
      channel.force(true);
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
    try {
      force(folder);
    } catch (IOException ignored) {
      // Some network file systems cannot sync a directory: its names are safe with their server.
    }
  }
}
