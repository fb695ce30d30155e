# The logging module
# %%
import logging

logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
logging.info("started")
# %%
log = logging.getLogger("mine")
log.warning("in another cell")
log.debug("too much detail")
# %%
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
