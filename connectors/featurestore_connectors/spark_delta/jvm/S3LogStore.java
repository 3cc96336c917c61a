package featurestore.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3AUtils;
import org.apache.hadoop.fs.s3a.impl.PutObjectOptions;
import org.apache.hadoop.fs.store.audit.AuditSpan;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.GetObjectRequest;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;
import software.amazon.awssdk.services.s3.model.NoSuchKeyException;
import software.amazon.awssdk.services.s3.model.PutObjectRequest;
import software.amazon.awssdk.services.s3.model.S3Exception;
import software.amazon.awssdk.services.s3.model.S3Object;

/**
 * The Delta log in S3: a commit is one conditional put, which never replaces an object.
 *
 * <p>Delta's own log store looks whether a commit is there and then writes its own, over what another driver has put
 * there in between. Here the server decides who was first ({@code If-None-Match}).
 *
 * <p>An answer that is lost on the way does not change that: what is sent again finds its name taken, and looks whether
 * the bytes there are its own. No two commits are alike, since each holds a random id.
 *
 * <p>Configured with {@code spark.delta.logStore.s3.impl=featurestore.delta.S3LogStore}.
 */
public class S3LogStore extends HadoopFileSystemLogStore {
  private static final int ATTEMPTS = 6;
  private static final int FIRST_PAUSE_MILLIS = 100;
  private static final int LONGEST_PAUSE_MILLIS = 5000;
  // Of the answers that are no success: the name is taken; another conditional put is under way.
  private static final int TAKEN = 412;
  private static final int CONFLICT = 409;
  // Asking again brings another answer.
  private static final List<Integer> PASSING = Arrays.asList(408, CONFLICT, 425, 429);

  /** Delta makes log stores by this constructor. */
  public S3LogStore(Configuration configuration) {
    super(configuration);
  }

  /**
   * Writes an object that appears at once with all its lines.
   *
   * @throws FileAlreadyExistsException the object is there and may not be replaced
   */
  @Override
  public void write(
      Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    Path target = resolvePathOnPhysicalStorage(path, configuration);
    S3AFileSystem files = filesOf(target, configuration);
    byte[] data = bytesOf(CommitChecksums.seal(target, actions, configuration));
    AuditSpan span = files.createSpan("featurestore.commit", target.toString(), null);
    try {
      put(files, target, data, overwrite);
    } finally {
      span.deactivate();
    }
  }

  /** Yields the objects of a folder from a name on; the number of those before it does not matter. */
  @Override
  public Iterator<FileStatus> listFrom(Path path, Configuration configuration) throws IOException {
    Path first = resolvePathOnPhysicalStorage(path, configuration);
    S3AFileSystem files = filesOf(first, configuration);
    List<FileStatus> found;
    AuditSpan span = files.createSpan("featurestore.list", first.toString(), null);
    try {
      found = listed(files, first);
    } catch (SdkException error) {
      throw S3AUtils.translateException("list", first.toString(), error);
    } finally {
      span.deactivate();
    }
    // Whether the folder is there at all is asked where it tells nothing of itself.
    return found.isEmpty() ? super.listFrom(path, configuration) : found.iterator();
  }

  /** Tells Delta that other files (checkpoints) may be written under their names: they appear whole. */
  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return false;
  }

  private static S3AFileSystem filesOf(Path path, Configuration configuration) throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    if (!(files instanceof S3AFileSystem)) {
      throw new IOException(
          "S3LogStore needs S3A for " + path + ", which is read by " + files.getClass());
    }
    return (S3AFileSystem) files;
  }

  private static byte[] bytesOf(Iterator<String> actions) {
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      lines.writeBytes(actions.next().getBytes(StandardCharsets.UTF_8));
      lines.write('\n');
    }
    return lines.toByteArray();
  }

  private static void put(S3AFileSystem files, Path target, byte[] data, boolean overwrite)
      throws IOException {
    S3Client client = clientOf(files);
    PutObjectRequest request = request(files, target, data.length, overwrite);
    for (int attempt = 1; ; attempt++) {
      try {
        client.putObject(request, RequestBody.fromBytes(data));
        return;
      } catch (SdkException error) {
        if (!overwrite && statusOf(error) == TAKEN) {
          // The answer to an earlier request of this call may have been lost on the way.
          if (holds(files, target, data)) {
            return;
          }
          throw new FileAlreadyExistsException(target.toString());
        }
        // Done or not, nobody knows. Sent again it finds its own bytes.
        if (attempt == ATTEMPTS || !passes(error)) {
          throw S3AUtils.translateException("write", target.toString(), error);
        }
      }
      pause(attempt);
    }
  }

  /** Returns what S3A would send, with its encryption, and the condition. */
  private static PutObjectRequest request(
      S3AFileSystem files, Path target, long length, boolean overwrite) {
    PutObjectRequest.Builder request =
        files
            .getRequestFactory()
            .newPutObjectRequestBuilder(files.pathToKey(target), options(), length, false);
    if (!overwrite) {
      request.overrideConfiguration(added -> added.putHeader("If-None-Match", "*"));
    }
    return request.build();
  }

  /** Returns the options of a plain write; Hadoop 3.5 renamed the method that returns them. */
  private static PutObjectOptions options() {
    for (String name : List.of("keepingDirs", "defaultOptions")) {
      try {
        return (PutObjectOptions) PutObjectOptions.class.getMethod(name).invoke(null);
      } catch (NoSuchMethodException error) {
        continue;
      } catch (ReflectiveOperationException error) {
        throw new IllegalStateException(error);
      }
    }
    throw new IllegalStateException("hadoop-aws has no options for writing an object");
  }

  private static boolean holds(S3AFileSystem files, Path target, byte[] data) throws IOException {
    GetObjectRequest request =
        files.getRequestFactory().newGetObjectRequestBuilder(files.pathToKey(target)).build();
    try {
      byte[] there = clientOf(files).getObjectAsBytes(request).asByteArray();
      return Arrays.equals(there, data);
    } catch (NoSuchKeyException error) {
      return false;
    } catch (SdkException error) {
      throw S3AUtils.translateException("read", target.toString(), error);
    }
  }

  private static List<FileStatus> listed(S3AFileSystem files, Path first) {
    Path folder = first.getParent();
    String prefix = files.pathToKey(folder) + "/";
    String name = first.getName();
    // What comes after a shorter text: the name itself is among it.
    String before = prefix + name.substring(0, name.length() - 1);
    List<FileStatus> found = new ArrayList<>();
    ListObjectsV2Request request =
        ListObjectsV2Request.builder()
            .bucket(files.getBucket())
            .prefix(prefix)
            .delimiter("/")
            .startAfter(before)
            .build();
    for (S3Object each : clientOf(files).listObjectsV2Paginator(request).contents()) {
      String child = each.key().substring(prefix.length());
      if (!child.isEmpty() && child.compareTo(name) >= 0) {
        long modified = each.lastModified().toEpochMilli();
        long block = files.getDefaultBlockSize(folder);
        found.add(new FileStatus(each.size(), false, 1, block, modified, new Path(folder, child)));
      }
    }
    return found;
  }

  private static S3Client clientOf(S3AFileSystem files) {
    return files.getS3AInternals().getAmazonS3Client("Delta log");
  }

  private static int statusOf(SdkException error) {
    return error instanceof S3Exception ? ((S3Exception) error).statusCode() : 0;
  }

  private static boolean passes(SdkException error) {
    int status = statusOf(error);
    return status == 0 || status >= 500 || PASSING.contains(status);
  }

  /** Waits before a request is sent again, the longer the more often it failed. */
  private static void pause(int attempt) throws InterruptedIOException {
    int longest = Math.min(FIRST_PAUSE_MILLIS << (attempt - 1), LONGEST_PAUSE_MILLIS);
    try {
      Thread.sleep(ThreadLocalRandom.current().nextInt(longest / 2, longest + 1));
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new InterruptedIOException("Interrupted while a commit waited for the server.");
    }
  }
}
