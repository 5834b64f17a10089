import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.catalog.DeltaCatalog;

/** Delta's catalog by a name of its own, over the session's metastore; Delta's class alone is for spark_catalog only. */
public class NamedCatalog extends DeltaCatalog {
    public NamedCatalog() {
        setDelegateCatalog(SparkSession.active().sessionState().catalogManager().v2SessionCatalog());
    }

    @Override
    public String name() {
        return "main";
    }
}
