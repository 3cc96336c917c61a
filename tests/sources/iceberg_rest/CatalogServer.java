// The REST catalog of Iceberg's tests over a JDBC catalog: CatalogServer FOLDER TOKEN [NAME=VALUE ...]
// It prints its port. The settings NAME=VALUE are in the configuration of each table that a client
// loads, like the credentials that other catalogs vend.
package org.apache.iceberg.rest;

import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.responses.LoadTableResponse;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

public class CatalogServer {
  public static void main(String[] arguments) throws Exception {
    Map<String, String> properties = new HashMap<>();
    properties.put("uri", "jdbc:sqlite:" + arguments[0] + "/catalog.db");
    properties.put("warehouse", "file:" + arguments[0] + "/warehouse");
    Catalog catalog = CatalogUtil.loadCatalog(
        "org.apache.iceberg.jdbc.JdbcCatalog", "tests", properties, new Configuration());
    Map<String, String> vended = new HashMap<>();
    for (int index = 2; index < arguments.length; index++) {
      String[] setting = arguments[index].split("=", 2);
      vended.put(setting[0], setting[1]);
    }
    RESTCatalogAdapter adapter = new RESTCatalogAdapter(catalog) {
      @Override
      public <T extends RESTResponse> T handleRequest(
          Route route, Map<String, String> variables, Object body, Class<T> type) {
        T response = super.handleRequest(route, variables, body, type);
        if (response instanceof LoadTableResponse) {
          ((LoadTableResponse) response).config().putAll(vended);
        }
        return response;
      }
    };
    RESTCatalogServlet servlet = new RESTCatalogServlet(adapter) {
      @Override
      protected void service(HttpServletRequest request, HttpServletResponse response)
          throws IOException, jakarta.servlet.ServletException {
        if (("Bearer " + arguments[1]).equals(request.getHeader("Authorization"))) {
          super.service(request, response);
        } else {
          response.setStatus(401);
        }
      }
    };
    Server server = new Server(new java.net.InetSocketAddress("127.0.0.1", 0));
    ServletContextHandler context = new ServletContextHandler();
    context.addServlet(new ServletHolder(servlet), "/*");
    server.setHandler(context);
    server.start();
    System.out.println(((ServerConnector) server.getConnectors()[0]).getLocalPort());
    server.join();
  }
}
