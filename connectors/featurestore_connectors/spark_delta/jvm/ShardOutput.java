package featurestore.tfrecord;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.UUID;

/**
 * A file that is whole or absent: hashed as it grows, under a temporary name until it is published.
 *
 * <p>{@code featurestore.storage.shards} does the same, with the same names.
 */
final class ShardOutput implements Closeable {
  private static final int PIECE_BYTES = 1 << 20;
  private static final int PREFIX_DIGITS = 8;

  private final Path target;
  private final Path temporary;
  private final FileChannel channel;
  private final MessageDigest digest;
  private final List<String> prefixes = new ArrayList<>();
  private int room = PIECE_BYTES;
  private long size;

  ShardOutput(Path target) {
    this.target = target;
    this.temporary =
        target.resolveSibling(
            "." + target.getFileName() + "." + UUID.randomUUID().toString().replace("-", "") + ".tmp");
    try {
      digest = MessageDigest.getInstance("SHA-256");
      Files.createDirectories(target.getParent());
      channel =
          FileChannel.open(temporary, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
    } catch (IOException error) {
      throw refused(error);
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Appends the first bytes of an array. */
  void write(byte[] data, int length) {
    hash(data, length);
    ByteBuffer left = ByteBuffer.wrap(data, 0, length);
    try {
      while (left.hasRemaining()) {
        channel.write(left);
      }
    } catch (IOException error) {
      throw refused(error);
    }
    size += length;
  }

  private void hash(byte[] data, int length) {
    int start = 0;
    while (start < length) {
      int piece = Math.min(room, length - start);
      digest.update(data, start, piece);
      start += piece;
      room -= piece;
      if (room == 0) {
        prefixes.add(hexOf(copyOfDigest()).substring(0, PREFIX_DIGITS));
        room = PIECE_BYTES;
      }
    }
  }

  private MessageDigest copyOfDigest() {
    try {
      return (MessageDigest) digest.clone();
    } catch (CloneNotSupportedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static String hexOf(MessageDigest digest) {
    return HexFormat.of().formatHex(digest.digest());
  }

  /** Brings the file to disk, gives it its name, and describes it. */
  void publish(ObjectNode found) {
    try {
      channel.force(true);
      channel.close();
      Files.move(
          temporary, target, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
      syncFolder();
    } catch (IOException error) {
      throw refused(error);
    }
    found.put("bytes", size);
    found.put("sha256", hexOf(copyOfDigest()));
    ArrayNode listed = found.putArray("prefixes");
    prefixes.forEach(listed::add);
  }

  private void syncFolder() {
    try (FileChannel folder = FileChannel.open(target.getParent(), StandardOpenOption.READ)) {
      folder.force(true);
    } catch (IOException ignored) {
      // Some network file systems cannot sync a directory: its names are safe with their server.
    }
  }

  /** Removes the file where it was not published. */
  @Override
  public void close() {
    try {
      channel.close();
      Files.deleteIfExists(temporary);
    } catch (IOException ignored) {
      // The export looks for files of tasks that were killed.
    }
  }

  private StoreException refused(IOException error) {
    String reason = error.getMessage();
    if (error instanceof FileSystemException && ((FileSystemException) error).getReason() != null) {
      reason = ((FileSystemException) error).getReason();
    }
    return new StoreException(
        "StorageError",
        "Cannot write '" + target + "': " + reason + ".",
        "check free space and permissions",
        error);
  }
}
