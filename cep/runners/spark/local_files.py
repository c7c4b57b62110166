"""Hadoop's local file system without a process for each file.

Where Hadoop's native library is missing, as in Spark's Python package, its local file system starts `chmod` for every
file that it makes: six per micro-batch, a tenth of a small micro-batch's time. Java can set permissions itself. Hadoop
has no setting for that, but creates one file system per process and keeps it. A file system that differs in this method
alone therefore replaces Hadoop's own. Its source is compiled by the compiler that Spark has for its own queries.
Tested by: tests/runners/spark/test_driver.py
"""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_CLASS = "cep.PlainLocalFiles"
_SOURCE = """\
package cep;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class PlainLocalFiles extends LocalFileSystem {
  public PlainLocalFiles() {
    super(new Raw());
  }

  public static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission);
      } else {
        String text = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
            + permission.getOtherAction().SYMBOL;
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
      }
    }
  }
}
"""


def set_permissions_in_java(spark: SparkSession) -> bool:
    """Make this process's Java create local files without the program `chmod`. Return True if it does.

    If Spark has no compiler, or refuses this with its Hadoop, nothing changes and files are only slower. The same holds
    for the Java of other machines.
    """
    jvm = spark.sparkContext._jvm  # noqa: SLF001 the one way to Java
    assert jvm is not None, "a session has its Java"
    try:
        conf = jvm.org.apache.hadoop.conf.Configuration(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
        local = jvm.java.net.URI("file:///")
        file_system = jvm.org.apache.hadoop.fs.FileSystem.get(local, conf)
        if file_system.getClass().getName() == _CLASS:
            return True
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(_SOURCE)
        conf.setClassLoader(compiler.getClassLoader())
        conf.set("fs.file.impl", _CLASS)
        file_system.close()  # it leaves Hadoop's register of file systems, no more
        return bool(jvm.org.apache.hadoop.fs.FileSystem.get(local, conf).getClass().getName() == _CLASS)
    except Py4JError:
        return False
