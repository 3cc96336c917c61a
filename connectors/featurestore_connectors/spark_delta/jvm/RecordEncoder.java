package featurestore.tfrecord;

import com.fasterxml.jackson.databind.JsonNode;
import featurestore.hashing.ColumnReader;
import java.io.IOException;
import java.io.Serializable;
import java.util.Arrays;
import java.util.zip.CRC32C;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;

/**
 * Turns rows into framed records of {@code tf.train.Example} by a plan of the store: bytes to copy, and the places in
 * them where values go.
 *
 * <p>The connector {@code tfrecord} makes the plan and writes the same bytes.
 */
final class RecordEncoder implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final int HEADER = 12;
  private static final int FOOTER = 4;
  private static final int MASK = 0xA282EAD8;

  private final byte[] template;
  private final boolean fixed;
  private final Place[] places;
  private final Tail[] tails;

  RecordEncoder(JsonNode plan, StructType schema) throws IOException {
    template = plan.get("template").binaryValue();
    fixed = plan.get("fixed").asBoolean();
    JsonNode given = plan.get("places");
    places = new Place[given.size()];
    for (int index = 0; index < places.length; index++) {
      places[index] = new Place(given.get(index), schema);
    }
    given = plan.get("tails");
    tails = new Tail[given.size()];
    for (int index = 0; index < tails.length; index++) {
      tails[index] = new Tail(given.get(index), schema);
    }
  }

  /** Tells whether all records have one length. */
  boolean isFixed() {
    return fixed;
  }

  /** Appends the record of a row. */
  void append(InternalRow row, Block block) {
    int start = block.size;
    int body = fixed ? start : start + HEADER;
    block.reserve(body - start + template.length + FOOTER);
    System.arraycopy(template, 0, block.bytes, body, template.length);
    for (Place place : places) {
      place.fill(row, block.bytes, body);
    }
    int end = body + template.length - (fixed ? FOOTER : 0);
    block.size = end;
    for (Tail tail : tails) {
      tail.append(row, block);
    }
    end = block.size;
    block.reserve(FOOTER);
    if (!fixed) {
      number(block.bytes, start, end - start - HEADER, Long.BYTES);
      number(block.bytes, start + Long.BYTES, checksum(block.bytes, start, Long.BYTES), FOOTER);
    }
    int payload = start + HEADER;
    number(block.bytes, end, checksum(block.bytes, payload, end - payload), FOOTER);
    block.size = end + FOOTER;
  }

  /** Bytes of records, one behind the other. */
  static final class Block {
    byte[] bytes = new byte[1 << 21];
    int size;

    void reserve(int more) {
      if (size + more > bytes.length) {
        bytes = Arrays.copyOf(bytes, Math.max(size + more, 2 * bytes.length));
      }
    }
  }

  private static int checksum(byte[] bytes, int start, int length) {
    CRC32C crc = new CRC32C();
    crc.update(bytes, start, length);
    return Integer.rotateRight((int) crc.getValue(), 15) + MASK;
  }

  private static void number(byte[] bytes, int start, long value, int width) {
    for (int index = 0; index < width; index++) {
      bytes[start + index] = (byte) (value >>> (8 * index));
    }
  }

  private static void varint(byte[] bytes, int start, long value, int width) {
    for (int index = 0; index < width - 1; index++) {
      bytes[start + index] = (byte) (value >>> (7 * index) | 0x80);
    }
    bytes[start + width - 1] = (byte) (value >>> (7 * (width - 1)) & 0x7F);
  }

  private static boolean fits(long value, int width) {
    return width >= 10 || value >>> (7 * width) == 0;
  }

  /** What is written before values whose length varies: length varints, and what each counts beyond the value. */
  private static final class Lengths implements Serializable {
    private static final long serialVersionUID = 1L;
    private final int[] offsets;
    private final int[] extras;
    private final int width;

    private Lengths(JsonNode given, int width) {
      offsets = new int[given.size()];
      extras = new int[given.size()];
      for (int index = 0; index < offsets.length; index++) {
        offsets[index] = given.get(index).get(0).asInt();
        extras[index] = given.get(index).get(1).asInt();
      }
      this.width = width;
    }

    private boolean hold(int length) {
      return fits((long) length + extras[0], width);
    }

    private void write(byte[] bytes, int start, int length) {
      for (int index = 0; index < offsets.length; index++) {
        varint(bytes, start + offsets[index], (long) length + extras[index], width);
      }
    }
  }

  /** A column and its key: the first byte of the key is masked where a row has no value. */
  private abstract static class Column implements Serializable {
    private static final long serialVersionUID = 1L;
    final String name;
    final ColumnReader reader;
    private final boolean nullable;
    private final int keyOffset;
    private final byte masked;

    private Column(JsonNode given, StructType schema) {
      name = given.get("name").asText();
      reader = ColumnReader.of(schema, name);
      nullable = given.get("nullable").asBoolean();
      keyOffset = given.get("key_offset").asInt();
      masked = (byte) given.get("masked").asInt();
    }

    final boolean maskNull(InternalRow row, byte[] bytes, int start) {
      if (!reader.isNull(row)) {
        return false;
      }
      if (!nullable) {
        throw notAsCounted("there are nulls where none were counted");
      }
      bytes[start + keyOffset] = masked;
      return true;
    }

    final StoreException notAsCounted(String what) {
      return new StoreException(
          "DatasetDamaged",
          "Column '" + name + "' is not as it was counted before writing: " + what + ".",
          "the source changed while it was read; run the export again",
          null);
    }
  }

  /** A column that has one place in every record; zeros stand there where a row has no value. */
  private static final class Place extends Column {
    private static final long serialVersionUID = 1L;
    private final int offset;
    private final int width;
    private final boolean constant;
    private final Lengths lengths;
    private final int filler;
    private final int fillerWidth;

    private Place(JsonNode given, StructType schema) {
      super(given, schema);
      offset = given.get("offset").asInt();
      width = given.get("width").asInt();
      constant = given.get("constant").asBoolean();
      lengths = constant ? null : new Lengths(given.get("lengths"), given.get("length_width").asInt());
      filler = given.get("filler").asInt();
      fillerWidth = given.get("filler_width").asInt();
    }

    private void fill(InternalRow row, byte[] bytes, int start) {
      boolean absent = maskNull(row, bytes, start);
      if (reader.isBytes() && !constant) {
        region(absent ? new byte[0] : reader.bytes(row), bytes, start);
      } else if (absent) {
        zero(bytes, start + offset);
      } else if (reader.isBytes()) {
        text(reader.bytes(row), bytes, start + offset);
      } else if (reader.isFraction()) {
        number(bytes, start + offset, reader.floatBits(row), width);
      } else {
        integer(reader.integer(row), bytes, start + offset);
      }
    }

    /** Writes what stands for a null. The template has zeros, which are no varint but in one byte. */
    private void zero(byte[] bytes, int place) {
      if (!reader.isBytes() && !reader.isFraction()) {
        varint(bytes, place, 0, width);
      }
    }

    private void integer(long value, byte[] bytes, int place) {
      if (!fits(value, width)) {
        throw notAsCounted("a number is larger than all that were counted");
      }
      varint(bytes, place, value, width);
    }

    private void text(byte[] value, byte[] bytes, int place) {
      if (value.length != width) {
        throw notAsCounted("texts differ from the " + width + " bytes that all had");
      }
      System.arraycopy(value, 0, bytes, place, width);
    }

    private void region(byte[] value, byte[] bytes, int start) {
      if (value.length > width) {
        throw notAsCounted("a text is longer than the " + width + " bytes of the longest");
      }
      lengths.write(bytes, start, value.length);
      int place = start + offset;
      System.arraycopy(value, 0, bytes, place, value.length);
      place += value.length;
      bytes[place] = (byte) filler;
      varint(bytes, place + 1, width - value.length, fillerWidth);
    }
  }

  /** A column behind the constant part of a record that is as long as its row needs. */
  private static final class Tail extends Column {
    private static final long serialVersionUID = 1L;
    private final byte[] head;
    private final Lengths lengths;

    private Tail(JsonNode given, StructType schema) throws IOException {
      super(given, schema);
      head = given.get("head").binaryValue();
      lengths = new Lengths(given.get("lengths"), given.get("length_width").asInt());
    }

    private void append(InternalRow row, Block block) {
      byte[] value = reader.isNull(row) ? new byte[0] : reader.bytes(row);
      if (!lengths.hold(value.length)) {
        throw notAsCounted("a value is longer than all that were counted");
      }
      block.reserve(head.length + value.length);
      System.arraycopy(head, 0, block.bytes, block.size, head.length);
      maskNull(row, block.bytes, block.size);
      lengths.write(block.bytes, block.size, value.length);
      System.arraycopy(value, 0, block.bytes, block.size + head.length, value.length);
      block.size += head.length + value.length;
    }
  }
}
