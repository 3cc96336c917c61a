package featurestore.tfrecord;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** An error of the store on its way to the driver, where Python raises it by its name. */
final class StoreException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  StoreException(String name, String message, String hint, Throwable cause) {
    super(packed(name, message, hint) + message, cause);
  }

  private static String packed(String name, String message, String hint) {
    ArrayNode parts = new ObjectMapper().createArrayNode().add(name).add(message).add(hint);
    byte[] bytes = parts.toString().getBytes(StandardCharsets.UTF_8);
    return "featurestore-error:" + Base64.getEncoder().encodeToString(bytes) + ": ";
  }
}
