"""Delta with its inner classes renamed, as Databricks' runtime has them: Maven's shade plugin makes it in 20 s."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.packages import fetch

from commitlake.spark import runtime

CATALOG = "com.databricks.sql.transaction.tahoe.catalog.DeltaCatalog"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>renamed</artifactId><version>1</version>
<dependencies><dependency><groupId>io.delta</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
</dependency></dependencies>
<build><plugins><plugin><groupId>org.apache.maven.plugins</groupId><artifactId>maven-shade-plugin</artifactId>
<version>3.6.0</version><executions><execution><phase>package</phase><goals><goal>shade</goal></goals><configuration>
<createDependencyReducedPom>false</createDependencyReducedPom>
<artifactSet><includes><include>io.delta:*</include></includes></artifactSet>
<relocations>
<relocation><pattern>org.apache.spark.sql.delta</pattern>
<shadedPattern>com.databricks.sql.transaction.tahoe</shadedPattern></relocation>
<relocation><pattern>io.delta.storage</pattern><shadedPattern>com.databricks.storage</shadedPattern></relocation>
</relocations>
<transformers><transformer implementation="org.apache.maven.plugins.shade.resource.ServicesResourceTransformer"/>
</transformers></configuration></execution></executions></plugin></plugins></build></project>
"""


def jar(place: Path) -> Path:
    """The jar, made in `place` once for each version and kept in the user's cache; skips a test that can't have it."""
    _, artifact, version = runtime.packages()[0].split(":")
    made = runtime.cached_file("renamed-delta-{}.jar", _POM, artifact, version)
    if not made.exists():
        (place / "pom.xml").write_text(_POM.format(artifact=artifact, version=version))
        fetch("mvn", "-q", "-B", "package", cwd=place)
        shutil.copyfile(place / "target" / "renamed-1.jar", made)
    return made


def beside(delta: Path) -> list[str]:
    """All jars that Spark needs, with `delta` in the place of the usual ones."""
    usual = runtime.jars(runtime.packages())
    return [str(delta), *(each for each in usual if "delta-" not in Path(each).name)]
