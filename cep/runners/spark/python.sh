#!/bin/sh
# Python, as Spark starts it for its workers, with the installed pyspark in place of Spark's own copy.
#
# Spark puts archives in front of the path: pyspark.zip and py4j's, with source alone, and a jar. Each process compiled
# anew what it imported of them, half a second, and looked for every module in all three. session.py asks for this where
# the installed package is the same. Tested by: tests/runners/spark/test_driver.py
while [ "${PYTHONPATH#*:}" != "$PYTHONPATH" ]; do
  case ${PYTHONPATH%%:*} in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) PYTHONPATH=${PYTHONPATH#*:} ;;
    *) break ;;
  esac
done
exec "$CEP_WORKER_PYTHON" "$@"
