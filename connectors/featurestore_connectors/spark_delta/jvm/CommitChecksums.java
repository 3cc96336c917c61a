package featurestore.delta;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.zip.CRC32C;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Adds the checksums of data files and of the commit before to a commit, as {@code featurestore/delta/checksums.py}
 * defines them.
 *
 * <p>The driver reads each new data file once. A file that the driver does not see has no checksum, so it is
 * unverified, and so are the files of commits with more than 256 MiB in an object store or in HDFS.
 */
final class CommitChecksums {
  private static final String FIELD = "featurestore.checksums";
  private static final String TAG = "featurestore.crc32c";
  private static final String DIGEST = "commit_sha256";
  private static final String ZEROS = "0".repeat(64);
  private static final Pattern COMMIT = Pattern.compile("(\\d{20})\\.json");
  private static final Pattern DIGEST_MARK = Pattern.compile("\"" + DIGEST + "\":\"([0-9a-f]{64})\"");
  private static final int READING_THREADS = 8;
  // A checkpoint of a version is written after its commit, so the next commit may precede it.
  private static final int COMMITS_BEFORE = 2;
  private static final int REMEMBERED_FILES = 10_000;
  // The driver reads new files back from a server, which is slow for the files of a large write.
  private static final long MOST_REMOTE_BYTES = 256L << 20;
  // A commit may add hundreds of small files, whose buffers would cost more than their checksums.
  private static final int READ_BYTES = 64 << 10;
  private static final ObjectMapper JSON = new ObjectMapper();
  // After a lost race, Delta writes the same files into the next commit.
  private static final Map<String, String> FILE_CHECKSUMS = new ConcurrentHashMap<>();

  private CommitChecksums() {}

  /** Returns the lines of a commit with checksums, and those of other files unchanged. */
  static Iterator<String> seal(Path target, Iterator<String> actions, Configuration configuration)
      throws IOException {
    Matcher name = COMMIT.matcher(target.getName());
    if (!name.matches()) {
      return actions;
    }
    List<String> lines = new ArrayList<>();
    actions.forEachRemaining(lines::add);
    FileSystem files = target.getFileSystem(configuration);
    if (files instanceof LocalFileSystem) {
      // Without Hadoop's own checksums of local files.
      files = ((LocalFileSystem) files).getRawFileSystem();
    }
    long version = Long.parseLong(name.group(1));
    addFileChecksums(lines, files, target.getParent().getParent());
    addCommitChecksums(lines, files, target.getParent(), version);
    return lines.iterator();
  }

  private static void addFileChecksums(List<String> lines, FileSystem files, Path table)
      throws IOException {
    Map<Integer, ObjectNode> added = new TreeMap<>();
    long bytes = 0;
    for (int index = 0; index < lines.size(); index++) {
      if (lines.get(index).startsWith("{\"add\":")) {
        ObjectNode action = (ObjectNode) JSON.readTree(lines.get(index));
        added.put(index, action);
        bytes += action.get("add").path("size").asLong();
      }
    }
    if (added.isEmpty() || (bytes > MOST_REMOTE_BYTES && !"file".equals(files.getUri().getScheme()))) {
      return;
    }
    ExecutorService pool = Executors.newFixedThreadPool(Math.min(READING_THREADS, added.size()));
    try {
      Map<Integer, Future<String>> sealed = new TreeMap<>();
      added.forEach(
          (index, action) ->
              sealed.put(index, pool.submit(() -> addFileChecksum(action, files, table))));
      for (Map.Entry<Integer, Future<String>> entry : sealed.entrySet()) {
        lines.set(entry.getKey(), entry.getValue().get());
      }
    } catch (ExecutionException error) {
      throw new IOException("A data file cannot be read for its checksum.", error.getCause());
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException("Interrupted while checksums of data files were computed.", error);
    } finally {
      pool.shutdownNow();
    }
  }

  private static String addFileChecksum(ObjectNode action, FileSystem files, Path table)
      throws IOException {
    ObjectNode add = (ObjectNode) action.get("add");
    JsonNode tags = add.get("tags");
    // A file with a new deletion vector has a known checksum.
    if (tags == null || !tags.has(TAG)) {
      try {
        Path file = new Path(table, new Path(new URI(add.get("path").asText())));
        String checksum = fileChecksum(files, file);
        ObjectNode sealedTags =
            tags instanceof ObjectNode ? (ObjectNode) tags : add.putObject("tags");
        sealedTags.put(TAG, checksum);
      } catch (FileNotFoundException | URISyntaxException | IllegalArgumentException ignored) {
        // A file that this machine does not see remains unverified.
      }
    }
    return JSON.writeValueAsString(action);
  }

  private static String fileChecksum(FileSystem files, Path file) throws IOException {
    String known = FILE_CHECKSUMS.get(file.toString());
    if (known != null) {
      return known;
    }
    CRC32C checksum = new CRC32C();
    byte[] buffer = new byte[READ_BYTES];
    try (InputStream input = files.open(file)) {
      for (int count = input.read(buffer); count >= 0; count = input.read(buffer)) {
        checksum.update(buffer, 0, count);
      }
    }
    String digits = String.format("%08x", checksum.getValue());
    if (FILE_CHECKSUMS.size() >= REMEMBERED_FILES) {
      FILE_CHECKSUMS.clear();
    }
    FILE_CHECKSUMS.put(file.toString(), digits);
    return digits;
  }

  private static void addCommitChecksums(
      List<String> lines, FileSystem files, Path log, long version) throws IOException {
    int index = 0;
    while (index < lines.size() && !lines.get(index).startsWith("{\"commitInfo\":")) {
      index++;
    }
    // The settings of a session can turn the action off; then the commit has no checksums.
    if (index == lines.size()) {
      return;
    }
    byte[] before = version == 0 ? null : read(files, commitPath(log, version - 1));
    ObjectNode action = (ObjectNode) JSON.readTree(lines.get(index));
    ObjectNode checksums = ((ObjectNode) action.get("commitInfo")).putObject(FIELD);
    checksums.put(DIGEST, ZEROS);
    checksums.put("previous", before == null ? null : digestOf(before));
    ObjectNode checkpoints = newCheckpoints(files, log, version, before);
    if (!checkpoints.isEmpty()) {
      checksums.set("checkpoints", checkpoints);
    }
    lines.set(index, JSON.writeValueAsString(action));
    String digest = sha256((String.join("\n", lines) + "\n").getBytes(StandardCharsets.UTF_8));
    String mark = "\"" + DIGEST + "\":\"";
    lines.set(index, lines.get(index).replace(mark + ZEROS, mark + digest));
  }

  /** Returns the checksums of the last checkpoints that no commit has recorded, by file name. */
  private static ObjectNode newCheckpoints(
      FileSystem files, Path log, long version, byte[] before) throws IOException {
    ObjectNode checkpoints = JSON.createObjectNode();
    // In an object store, the search would take a request per commit.
    if (!"file".equals(files.getUri().getScheme())) {
      return checkpoints;
    }
    String recorded = before == null ? "" : new String(before, StandardCharsets.UTF_8);
    for (long number = Math.max(version - COMMITS_BEFORE, 0); number < version; number++) {
      Path file = new Path(log, String.format("%020d.checkpoint.parquet", number));
      if (!recorded.contains("\"" + file.getName() + "\"") && files.exists(file)) {
        checkpoints.put(file.getName(), fileChecksum(files, file));
      }
    }
    return checkpoints;
  }

  private static Path commitPath(Path log, long version) {
    return new Path(log, String.format("%020d.json", version));
  }

  private static byte[] read(FileSystem files, Path file) throws IOException {
    ByteArrayOutputStream content = new ByteArrayOutputStream();
    try (InputStream input = files.open(file)) {
      input.transferTo(content);
    } catch (FileNotFoundException error) {
      return null;
    }
    return content.toByteArray();
  }

  /** Returns the digest of a commit: computed with zeros in place of the digest in the commit. */
  private static String digestOf(byte[] content) {
    // One character per byte, so that positions are those of bytes.
    String text = new String(content, StandardCharsets.ISO_8859_1);
    Matcher mark = DIGEST_MARK.matcher(text);
    if (mark.find()) {
      text = text.substring(0, mark.start(1)) + ZEROS + text.substring(mark.end(1));
    }
    return sha256(text.getBytes(StandardCharsets.ISO_8859_1));
  }

  private static String sha256(byte[] content) {
    try {
      StringBuilder digits = new StringBuilder();
      for (byte value : MessageDigest.getInstance("SHA-256").digest(content)) {
        digits.append(String.format("%02x", value));
      }
      return digits.toString();
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException(error);
    }
  }
}
